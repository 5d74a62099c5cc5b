//! When two JSON values are the same: as canonical JSON, where the order of members does not matter
//! and a number has one text.

use serde_json::{Number, Value};
use xxhash_rust::xxh3::xxh3_128;

/// The canonical text of a value.
pub(super) fn text(value: &Value) -> String {
    normal(value.clone()).to_string()
}

/// A short stand-in for the canonical text.
pub(super) fn digest(canonical: &str) -> String {
    format!("{:032x}", xxh3_128(canonical.as_bytes()))
}

/// Whether two values are the same.
pub(super) fn same(one: &Value, other: &Value) -> bool {
    one == other || normal(one.clone()) == normal(other.clone())
}

/// A value whose whole numbers are written as such. Members are sorted as they are stored.
fn normal(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(normal_number(number)),
        Value::Array(items) => Value::Array(items.into_iter().map(normal).collect()),
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(name, value)| (name, normal(value)))
                .collect(),
        ),
        other => other,
    }
}

fn normal_number(number: Number) -> Number {
    /// Beyond this a double does not hold every whole number.
    const MAX: f64 = crate::time::MAX_SAFE_INTEGER as f64;
    match number.as_f64() {
        Some(double) if number.is_f64() && double.fract() == 0.0 && double.abs() <= MAX => {
            Number::from(double as i64)
        }
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_of_members_and_ways_to_write_a_number_do_not_matter() {
        let one: Value = serde_json::from_str(r#"{"a":1.0,"b":[{"d":-0.0,"c":2}]}"#).expect("JSON");
        let other: Value = serde_json::from_str(r#"{"b":[{"c":2,"d":0}],"a":1}"#).expect("JSON");
        assert!(same(&one, &other));
        assert_eq!(text(&one), text(&other));
    }

    #[test]
    fn different_values_differ() {
        for (one, other) in [
            (json!(1), json!("1")),
            (json!(null), json!({})),
            (json!([1, 2]), json!([2, 1])),
            (json!(1.5), json!(1)),
            (
                json!(9_007_199_254_740_993_u64),
                json!(9_007_199_254_740_992_u64),
            ),
        ] {
            assert!(!same(&one, &other), "{one} {other}");
            assert_ne!(digest(&text(&one)), digest(&text(&other)));
        }
    }
}
