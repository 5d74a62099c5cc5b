//! What members get and answer, and where they are.

use std::borrow::Cow;
use std::str::FromStr;

use durably::error::BoxError;
use durably::topology::{Role, StateUpdate};
use serde::{Deserialize, Serialize};

/// What a member gets.
#[derive(Serialize, Deserialize)]
pub struct Delivery<'a> {
    /// The topology.
    pub topology: Cow<'a, str>,
    /// The member's id.
    pub member: Cow<'a, str>,
    /// The value, and what it is newer than.
    #[serde(flatten)]
    pub update: Cow<'a, StateUpdate>,
}

#[derive(Deserialize)]
struct DrainedText {
    drained: bool,
}

/// Reads whether a member is drained.
///
/// # Errors
///
/// What is wrong with its answer.
pub fn read_drained(answer: &[u8]) -> Result<bool, BoxError> {
    let DrainedText { drained } = serde_json::from_slice(answer)?;
    Ok(drained)
}

/// What a member is asked about, as the query of a URL.
pub fn drained_query(topology: &str, group: &str, member: &str) -> String {
    let query = [("topology", topology), ("group", group), ("member", member)];
    // Texts always have one.
    serde_urlencoded::to_string(query).unwrap_or_default()
}

/// A member's answer that is no success; `shown` is its status, `text` what it says.
pub fn refused(shown: &str, text: &str) -> BoxError {
    format!("the member answered {shown}: {text}").into()
}

/// An address by its template: `{topology}`, `{group}` and `{member}` stand for the names,
/// percent-encoded.
///
/// # Errors
///
/// What is wrong with the template, or with a name that cannot be part of a URL.
pub fn fill(template: &str, topology: &str, group: &str, member: &str) -> Result<String, BoxError> {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or("\"{\" has no \"}\"")?;
        let value = match name {
            "topology" => topology,
            "group" => group,
            "member" => member,
            other => return Err(format!("{{{other}}} stands for nothing").into()),
        };
        // A URL takes them for steps up and down its path, however they are written.
        if matches!(value, "." | "..") {
            return Err(format!("{value:?} cannot be part of a URL").into());
        }
        filled.push_str(before);
        filled.extend(percent_encoding::utf8_percent_encode(
            value,
            UNRESERVED_ONLY,
        ));
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Whether a template can be one; `check` says what is wrong with a URL.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_template(
    template: &str,
    check: impl FnOnce(&str) -> Result<(), BoxError>,
) -> Result<(), String> {
    let checked = fill(template, "t", "g", "m").and_then(|url| check(&url));
    checked.map_err(|error| error.to_string())
}

/// All but what a URL has no other use for.
const UNRESERVED_ONLY: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A state channel as settings have it, for instance `limits` or `flags=read`: its name, and whom it
/// reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChannel {
    /// Its name.
    pub name: String,
    /// Active members, or draining ones too.
    pub role: Role,
}

impl FromStr for StateChannel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, role) = match text.split_once('=') {
            None => (text, Role::Write),
            Some((name, "write")) => (name, Role::Write),
            Some((name, "read")) => (name, Role::Read),
            Some((_, role)) => {
                return Err(format!("{role:?} is no role: write \"write\" or \"read\""));
            }
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(is_plain) {
            return Err("a channel's name has 1 to 64 letters, digits, '-', '_' or '.'".to_owned());
        }
        Ok(StateChannel {
            name: name.to_owned(),
            role,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_with_what_cannot_leave_its_place() {
        let url = |member| fill("http://h:1/{topology}/{group}/{member}", "t", "a b", member);
        assert_eq!(url("m-1").unwrap(), "http://h:1/t/a%20b/m-1");
        assert_eq!(
            url("../x?y#z@").unwrap(),
            "http://h:1/t/a%20b/..%2Fx%3Fy%23z%40"
        );
        assert!(url("..").is_err());
        for wrong in ["http://h/{member", "http://h/{id}"] {
            assert!(check_template(wrong, |_| Ok(())).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_question_keeps_the_names_apart() {
        assert_eq!(
            drained_query("t", "a&member=b", "ü"),
            "topology=t&group=a%26member%3Db&member=%C3%BC"
        );
    }
}
