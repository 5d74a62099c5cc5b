//! What an exception of Workers KV says about a write: that it was refused, or nothing.

/// Whether a write that failed with this text cannot be stored any more. KV's exceptions end with the
/// status that its service answered; only one that blames the request is a refusal, after anything
/// else the write may still be carried out.
pub(super) fn is_refusal(text: &str) -> bool {
    let status = text
        .split_once("KV PUT failed: ")
        .and_then(|(_, rest)| rest.split(' ').next())
        .and_then(|status| status.parse::<u16>().ok());
    status.is_some_and(|status| (400..500).contains(&status) && status != 408)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_blames_the_request_is_a_refusal() {
        for (text, refusal) in [
            ("KV PUT failed: 429 Too Many Requests", true),
            (
                "KV PUT failed: 413 Value length of 26214401 exceeds limit of 26214400.",
                true,
            ),
            ("KV PUT failed: 400 Invalid key", true),
            ("KV PUT failed: 408 Request Timeout", false),
            ("KV PUT failed: 500 Internal Server Error", false),
            ("KV PUT failed: 503 429 ", false),
            ("KV GET failed: 400 Invalid key", false),
            ("Network connection lost.", false),
            ("", false),
        ] {
            assert_eq!(is_refusal(text), refusal, "{text}");
        }
    }
}
