//! Whole numbers on their way through JavaScript, which knows only doubles. Decided here: what is
//! exact, and what is refused because it could not be.

use durably::StorageError;
use durably::host::Value;
use durably::time::MAX_SAFE_INTEGER;

const LARGEST: i64 = MAX_SAFE_INTEGER as i64;

/// A whole number as a double that holds it exactly.
///
/// # Errors
///
/// [`StorageError::TooLarge`] if there is none that no other number shares.
pub(crate) fn to_double(whole: i64) -> Result<f64, StorageError> {
    if (-LARGEST..=LARGEST).contains(&whole) {
        Ok(whole as f64)
    } else {
        Err(StorageError::TooLarge(format!(
            "{whole} is beyond 2^53 - 1, the largest whole number that the platform keeps exactly"
        )))
    }
}

/// What a number from a row is. SQLite's integers and reals arrive alike; a number that is whole and
/// exact is an integer, any other is a real, so that a larger integer is never taken for the one
/// next to it.
pub(crate) fn from_double(number: f64) -> Value<'static> {
    if number.fract() == 0.0 && number.abs() <= LARGEST as f64 {
        Value::Integer(number as i64)
    } else {
        Value::Real(number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_whole_number_comes_back_or_is_refused(whole: i64) {
            match to_double(whole) {
                Ok(double) => prop_assert_eq!(from_double(double), Value::Integer(whole)),
                Err(error) => {
                    prop_assert!(whole.unsigned_abs() > MAX_SAFE_INTEGER);
                    prop_assert_eq!(error.code(), "storage_too_large");
                }
            }
        }

        #[test]
        fn a_safe_number_comes_back(whole in -LARGEST..=LARGEST) {
            prop_assert_eq!(to_double(whole).map(from_double), Ok(Value::Integer(whole)));
        }

        #[test]
        fn a_stored_number_beyond_what_is_exact_is_no_integer(
            whole in (MAX_SAFE_INTEGER + 1)..(i64::MAX as u64)
        ) {
            prop_assert_eq!(from_double(whole as f64), Value::Real(whole as f64));
            prop_assert_eq!(from_double(-(whole as f64)), Value::Real(-(whole as f64)));
        }
    }
}
