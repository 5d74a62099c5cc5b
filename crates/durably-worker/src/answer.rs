//! What a request is answered with: a status and JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// An answer as it goes out.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Refusal<'a>,
}

#[derive(Serialize)]
struct Refusal<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

impl Answer {
    /// 200, with this.
    pub(crate) fn ok(answer: &impl Serialize) -> Answer {
        match serde_json::to_string(answer) {
            Ok(body) => Answer { status: 200, body },
            Err(error) => Answer::refusal("unwritable_answer", &error.to_string(), None),
        }
    }

    /// A refusal, as every door of durably writes it.
    pub(crate) fn refusal(code: &str, message: &str, field: Option<&str>) -> Answer {
        let error = Refusal {
            code,
            message,
            field,
        };
        Answer {
            status: durably::error::http_status(code),
            // Three texts: nothing of it can fail to be written.
            body: serde_json::to_string(&Envelope { error }).unwrap_or_default(),
        }
    }

    /// A refusal of a field; `problem` completes the sentence "*field* …".
    pub(crate) fn invalid(field: &str, problem: &str) -> Answer {
        Answer::refusal("invalid", &format!("{field} {problem}"), Some(field))
    }
}

/// Reads one JSON object, naming the field that is wrong.
pub(crate) fn parse_object<T: DeserializeOwned>(json: &str) -> Result<T, Answer> {
    if !json.trim_start().starts_with('{') {
        let code = match serde_json::from_str::<serde::de::IgnoredAny>(json) {
            Ok(_) => "invalid",
            Err(_) => "malformed_json",
        };
        return Err(Answer::refusal(code, "this must be a JSON object", None));
    }
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let value: T = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.inner();
        match cause.classify() {
            serde_json::error::Category::Data if path != "." => {
                Answer::invalid(&path, &format!("is wrong: {cause}"))
            }
            serde_json::error::Category::Data => {
                Answer::refusal("invalid", &cause.to_string(), None)
            }
            _ => not_json(cause),
        }
    })?;
    deserializer.end().map_err(|error| not_json(&error))?;
    Ok(value)
}

fn not_json(error: &serde_json::Error) -> Answer {
    Answer::refusal(
        "malformed_json",
        &format!("this is not JSON: {error}"),
        None,
    )
}
