//! A change: its body, and what it expects of the group, by its headers.

use durably::topology::{Draft, Expected, GroupChange, Patch};

use crate::{ApiError, parse};

/// The values of one header, in order; `None` for one that is not visible ASCII.
pub type HeaderValues<'a> = &'a [Option<&'a str>];

const IF_MATCH: &str = "If-Match";
const IF_NONE_MATCH: &str = "If-None-Match";

/// Reads what a group is to be.
///
/// # Errors
///
/// [`ApiError`] naming what is wrong.
pub fn read_draft(json: &[u8]) -> Result<GroupChange, ApiError> {
    Ok(GroupChange::Draft(Draft::from_json(parse(json)?)?))
}

/// Reads what of a group is to be otherwise.
///
/// # Errors
///
/// [`ApiError`] naming what is wrong.
pub fn read_patch(json: &[u8]) -> Result<GroupChange, ApiError> {
    Ok(GroupChange::Patch(Patch::from_json(parse(json)?)?))
}

/// What a change expects, by the headers `If-Match` and `If-None-Match`.
///
/// # Errors
///
/// `malformed_request`, naming the header.
pub fn expected(
    if_match: HeaderValues<'_>,
    if_none_match: HeaderValues<'_>,
) -> Result<Expected, ApiError> {
    let only = |name, values: HeaderValues<'_>| match values {
        [] => Ok(None),
        [Some(value)] => Ok(Some(value.trim().to_owned())),
        _ => Err(malformed(name, "must be there once, in ASCII")),
    };
    let if_match = only(IF_MATCH, if_match)?;
    let if_none_match = only(IF_NONE_MATCH, if_none_match)?;
    match (if_match.as_deref(), if_none_match.as_deref()) {
        (None, None) => Ok(Expected::Anything),
        (Some("*"), None) => Ok(Expected::Some),
        (Some(tag), None) => version(tag).map(Expected::Version).ok_or_else(|| {
            malformed(
                IF_MATCH,
                "must be the group's version in quotes, for instance \"3\", or *",
            )
        }),
        (None, Some("*")) => Ok(Expected::None),
        (None, Some(_)) => Err(malformed(IF_NONE_MATCH, "must be *")),
        (Some(_), Some(_)) => Err(malformed(IF_MATCH, "cannot go with If-None-Match")),
    }
}

/// What a deletion expects.
///
/// # Errors
///
/// `malformed_request`, naming the header.
pub fn expected_by_deletion(
    if_match: HeaderValues<'_>,
    if_none_match: HeaderValues<'_>,
) -> Result<Expected, ApiError> {
    match expected(if_match, if_none_match)? {
        Expected::None => Err(malformed(IF_NONE_MATCH, "cannot go with DELETE")),
        expected => Ok(expected),
    }
}

fn version(tag: &str) -> Option<u64> {
    let digits = tag.strip_prefix('"')?.strip_suffix('"')?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| digits.parse().ok()).flatten()
}

fn malformed(header: &'static str, problem: &str) -> ApiError {
    ApiError {
        code: "malformed_request".into(),
        message: format!("{header} {problem}"),
        field: Some(header.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(if_match: &[&str], if_none_match: &[&str]) -> Result<Expected, Option<String>> {
        let values = |values: &[&str]| -> Vec<Option<String>> {
            values
                .iter()
                .map(|value| Some((*value).to_owned()))
                .collect()
        };
        let (one, other) = (values(if_match), values(if_none_match));
        let one: Vec<Option<&str>> = one.iter().map(Option::as_deref).collect();
        let other: Vec<Option<&str>> = other.iter().map(Option::as_deref).collect();
        expected(&one, &other).map_err(|error| error.field)
    }

    #[test]
    fn headers_say_what_a_change_expects() {
        assert_eq!(read(&[], &[]), Ok(Expected::Anything));
        assert_eq!(read(&["\"3\""], &[]), Ok(Expected::Version(3)));
        assert_eq!(read(&[" * "], &[]), Ok(Expected::Some));
        assert_eq!(read(&[], &["*"]), Ok(Expected::None));
        for wrong in [
            "3",
            "\"\"",
            "\"-1\"",
            "\"+1\"",
            "W/\"3\"",
            "\"3\", \"4\"",
            "\"x\"",
            "\"",
        ] {
            let blamed = Err(Some("If-Match".to_owned()));
            assert_eq!(read(&[wrong], &[]), blamed, "{wrong}");
        }
        assert!(read(&[], &["\"3\""]).is_err());
        assert!(read(&["*"], &["*"]).is_err());
        assert!(read(&["\"1\"", "\"1\""], &[]).is_err());
        assert!(expected(&[None], &[]).is_err());
        assert!(expected_by_deletion(&[], &[Some("*")]).is_err());
    }
}
