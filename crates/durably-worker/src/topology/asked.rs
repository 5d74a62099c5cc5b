//! What is asked of a coordinator, read and checked before its object is opened.

use durably::topology::{Expected, GroupChange, TopologyError, TopologyNameError, check_group};
use durably_http::topology::{
    ConvergenceQuery, Groups, GroupsQuery, HeaderValues, MAX_DRAFT_BYTES, expected,
    expected_by_deletion, read_draft, read_patch,
};
use durably_http::{ApiError, BodyKind, body_too_large, kind, not_json_kind, parse_query};

use crate::answer::{Answer, not_allowed, not_found};
use crate::request::Request;

/// The headers `If-Match` and `If-None-Match`; the platform puts several of a name into one text.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    pub(super) if_match: Option<String>,
    pub(super) if_none_match: Option<String>,
}

impl Conditions {
    fn expect(
        &self,
        read: impl FnOnce(HeaderValues<'_>, HeaderValues<'_>) -> Result<Expected, ApiError>,
    ) -> Result<Expected, ApiError> {
        let values = |header: &Option<String>| -> Vec<Option<String>> {
            header.iter().map(|value| Some(value.clone())).collect()
        };
        let (one, other) = (values(&self.if_match), values(&self.if_none_match));
        let one: Vec<Option<&str>> = one.iter().map(Option::as_deref).collect();
        let other: Vec<Option<&str>> = other.iter().map(Option::as_deref).collect();
        read(&one, &other)
    }
}

/// What is asked.
pub(super) enum Asked {
    Change(String, Expected, GroupChange),
    Delete(String, Expected),
    Group(String),
    States(String),
    Convergence(String, ConvergenceQuery),
    Groups(GroupsQuery, u64),
    NewIncarnation,
}

/// What takes a method, by the path after the topology.
pub(super) fn methods(path: &[&str]) -> Option<&'static str> {
    match path {
        ["groups"] => Some("GET"),
        ["groups", _] => Some("GET, PUT, PATCH, DELETE"),
        ["groups", _, "states" | "convergence"] => Some("GET"),
        ["new-incarnation"] => Some("POST"),
        _ => None,
    }
}

impl Asked {
    /// Reads a request whose path follows the topology.
    pub(super) fn read(request: &Request, conditions: &Conditions) -> Result<Asked, Answer> {
        let path = request.path();
        let method = request.method.as_str();
        let Some(allowed) = methods(&path) else {
            return Err(not_found().into());
        };
        if !allowed.split(", ").any(|allowed| allowed == method) {
            return Err(not_allowed(method, allowed));
        }
        Ok(Asked::of(&path, request, conditions)?)
    }

    fn of(path: &[&str], request: &Request, conditions: &Conditions) -> Result<Asked, ApiError> {
        let group = path.get(1).copied().unwrap_or_default();
        let named = group.to_owned();
        let asked = match (path, request.method.as_str()) {
            (["groups", _], "PUT") => {
                let expected = conditions.expect(expected)?;
                Asked::Change(named, expected, read_draft(draft(request)?)?)
            }
            (["groups", _], "PATCH") => {
                let expected = conditions.expect(expected)?;
                Asked::Change(named, expected, read_patch(draft(request)?)?)
            }
            (["groups", _], "DELETE") => {
                Asked::Delete(named, conditions.expect(expected_by_deletion)?)
            }
            (["groups", _], _) => Asked::Group(named),
            (["groups", _, "states"], _) => Asked::States(named),
            (["groups", _, _], _) => {
                let query: ConvergenceQuery = parse_query(&request.query)?;
                query.wait()?;
                Asked::Convergence(named, query)
            }
            (["groups"], _) => {
                let query: GroupsQuery = parse_query(&request.query)?;
                let limit = query.limit()?;
                return Ok(Asked::Groups(query, limit));
            }
            _ => return Ok(Asked::NewIncarnation),
        };
        check_group(group)?;
        Ok(asked)
    }

    /// The answer of a topology that is not there; `None` if this makes it. Asking alone leaves no object
    /// behind.
    pub(super) fn of_nobody(&self, topology: &str, channels: &[&str]) -> Option<Answer> {
        let unknown = |group: &String| TopologyError::UnknownGroup(group.clone());
        let error: ApiError = match self {
            Asked::Change(group, expected, change) => {
                change.check_first(group, *expected, channels).err()?.into()
            }
            Asked::Groups(..) => return Some(Answer::ok(&Groups { groups: Vec::new() })),
            Asked::NewIncarnation => TopologyNameError::Unknown(topology.to_owned()).into(),
            Asked::Delete(group, _)
            | Asked::Group(group)
            | Asked::States(group)
            | Asked::Convergence(group, _) => unknown(group).into(),
        };
        Some(error.into())
    }
}

fn draft(request: &Request) -> Result<&[u8], ApiError> {
    if kind(request.content_type.as_deref()) != Some(BodyKind::Json) {
        return Err(not_json_kind());
    }
    if request.body.len() > MAX_DRAFT_BYTES {
        return Err(body_too_large(MAX_DRAFT_BYTES));
    }
    Ok(request.body.as_bytes())
}
