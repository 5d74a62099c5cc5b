//! A published group: its tag, and that it is not there.

use durably::topology::Edition;

use crate::ApiError;

/// The refusal of who asks for a group that is not published.
pub fn not_published(group: &str) -> ApiError {
    ApiError::new(
        "not_published",
        format!(
            "no group {group:?} is published: it was never there, is deleted, or is on its way"
        ),
    )
}

/// The tag of a group at its coordinator: the version that a change may name in `If-Match`.
pub fn version_tag(version: u64) -> String {
    format!("\"{version}\"")
}

/// The tag of a published text. Coordinators that follow each other count the same versions.
pub fn edition_tag(edition: &Edition) -> String {
    let incarnation = &edition.incarnation;
    format!(
        "\"{}-{}-{}\"",
        edition.version,
        incarnation.created_at.as_millis(),
        incarnation.nonce
    )
}

/// Whether the lists of tags in a header `If-None-Match` name this one; weak ones do as well.
pub fn is_known<'a>(if_none_match: impl IntoIterator<Item = &'a str>, tag: &str) -> bool {
    let mut lists = if_none_match.into_iter();
    lists.any(|list| names(list, tag))
}

fn names(list: &str, tag: &str) -> bool {
    list.split(',').map(str::trim).any(|known| {
        known == "*" || known == tag || known.strip_prefix("W/").is_some_and(|weak| weak == tag)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_tags_may_name_one() {
        for (list, named) in [
            ("\"a\"", true),
            ("\"b\", \"a\"", true),
            ("W/\"a\"", true),
            ("*", true),
            ("\"b\"", false),
            ("", false),
        ] {
            assert_eq!(is_known(["\"c\"", list], "\"a\""), named, "{list}");
        }
    }
}
