//! What a request is answered with: a status, a body and headers.

use durably_http::ApiError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;
use worker::js_sys::Array;

/// An answer as it goes out.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
}

impl Answer {
    /// This, with a status of success.
    pub(crate) fn new(status: u16, answer: &impl Serialize) -> Answer {
        match serde_json::to_string(answer) {
            Ok(body) => Answer {
                status,
                headers: Vec::new(),
                body,
            },
            Err(error) => ApiError::new("unwritable_answer", error.to_string()).into(),
        }
    }

    /// 200, with this.
    pub(crate) fn ok(answer: &impl Serialize) -> Answer {
        Answer::new(200, answer)
    }

    /// As JavaScript takes it: `[status, body, [[header, value], …]]`.
    pub(crate) fn into_javascript(self) -> JsValue {
        let headers: Array = self
            .headers
            .into_iter()
            .map(|(name, value)| Array::of2(&name.into(), &value.into()))
            .collect();
        Array::of3(&self.status.into(), &self.body.into(), &headers).into()
    }

    /// As it came from an object of this worker, by RPC.
    pub(crate) fn from_javascript(answer: &JsValue) -> Answer {
        let answer = Array::from(answer);
        let given = Array::from(&answer.get(2));
        let headers = given.iter().filter_map(|header| {
            let header = Array::from(&header);
            let name = match header.get(0).as_string()?.as_str() {
                "etag" => "etag",
                "allow" => "allow",
                "retry-after" => "retry-after",
                _ => return None,
            };
            Some((name, header.get(1).as_string()?))
        });
        Answer {
            status: answer.get(0).as_f64().unwrap_or(500.0) as u16,
            headers: headers.collect(),
            body: answer.get(1).as_string().unwrap_or_default(),
        }
    }

    /// What is answered, if it is no refusal.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        if self.status >= 300 {
            let error = ApiError::from_json(&self.body);
            return Err(error.unwrap_or_else(|| unreadable(&self.body)));
        }
        serde_json::from_str(&self.body).map_err(|error| unreadable(&error.to_string()))
    }
}

fn unreadable(problem: &str) -> ApiError {
    ApiError::new(
        "unreadable_answer",
        format!("an object of the worker gave an answer that cannot be read: {problem}"),
    )
}

impl From<ApiError> for Answer {
    fn from(error: ApiError) -> Answer {
        let header = error.header();
        Answer {
            status: error.status(),
            headers: header
                .into_iter()
                .map(|(name, value)| (name, value.to_owned()))
                .collect(),
            body: error.to_json(),
        }
    }
}

/// Nothing is at a path.
pub(crate) fn not_found() -> ApiError {
    ApiError::new("not_found", "nothing is here: docs/http.md lists the paths")
}

/// A path takes other methods.
pub(crate) fn not_allowed(method: &str, allowed: &str) -> Answer {
    let refusal = ApiError::new(
        "method_not_allowed",
        format!("{method} is not possible here, only {allowed}"),
    );
    let mut answer = Answer::from(refusal);
    answer.headers.push(("allow", allowed.to_owned()));
    answer
}
