//! Cases about values: what is stored comes back as it was, and sizes that must fit.

use std::rc::Rc;

use super::object::{said, unknown};
use super::{Exam, ExamObject, Verdict, demand_eq, exam_cases};
use crate::error::StorageError;
use crate::host::{EachRow, Row, Sql, Value};
use crate::time::MAX_SAFE_INTEGER;

exam_cases![
    integers_come_back,
    integers_are_whole_everywhere,
    reals_come_back,
    texts_come_back,
    blobs_come_back,
    null_is_null,
    a_mebibyte_fits,
    a_hundred_parameters_fit,
    a_deep_expression_fits,
    parameters_are_counted,
    wrong_types_are_reported,
    many_rows_come_in_order,
];

async fn integers_come_back(exam: &Exam<'_>) -> Verdict {
    exam.step("values integers").await.map(drop)
}

async fn integers_are_whole_everywhere(exam: &Exam<'_>) -> Verdict {
    exam.step("values whole").await.map(drop)
}

async fn reals_come_back(exam: &Exam<'_>) -> Verdict {
    exam.step("values reals").await.map(drop)
}

async fn texts_come_back(exam: &Exam<'_>) -> Verdict {
    exam.step("values texts").await.map(drop)
}

async fn blobs_come_back(exam: &Exam<'_>) -> Verdict {
    exam.step("values blobs").await.map(drop)
}

async fn null_is_null(exam: &Exam<'_>) -> Verdict {
    exam.step("values null").await.map(drop)
}

async fn a_mebibyte_fits(exam: &Exam<'_>) -> Verdict {
    exam.step("values store_mebibyte").await?;
    exam.crash().await;
    exam.step("values check_mebibyte").await.map(drop)
}

async fn a_hundred_parameters_fit(exam: &Exam<'_>) -> Verdict {
    let sum = exam.step("values parameters 100").await?;
    demand_eq!(sum, "4950", "the sum of a hundred parameters");
    Ok(())
}

async fn a_deep_expression_fits(exam: &Exam<'_>) -> Verdict {
    let sum = exam.step("values deep 99").await?;
    demand_eq!(sum, "4851", "a sum of ninety-nine parameters");
    Ok(())
}

async fn parameters_are_counted(exam: &Exam<'_>) -> Verdict {
    exam.step("values miscounted").await.map(drop)
}

async fn wrong_types_are_reported(exam: &Exam<'_>) -> Verdict {
    exam.step("values wrong_types").await.map(drop)
}

async fn many_rows_come_in_order(exam: &Exam<'_>) -> Verdict {
    exam.step("values rows 5000").await.map(drop)
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS exam_values (
    key INTEGER PRIMARY KEY,
    whole INTEGER,
    fraction REAL,
    words TEXT,
    bytes BLOB
) STRICT";

pub(super) async fn step(
    object: &Rc<ExamObject>,
    step: &str,
    argument: &str,
) -> Result<String, String> {
    let check: Check = match step {
        "integers" => |sql| {
            let largest = MAX_SAFE_INTEGER as i64;
            for whole in [0, 1, -1, 255, 1 << 31, -(1 << 40), largest, -largest] {
                let stored = round_trip(sql, "whole", whole.into(), |row| row.integer(0))?;
                same(stored, whole)?;
            }
            Ok(String::new())
        },
        "whole" => |sql| {
            let statement = "SELECT typeof(?1), ?1 / 2, ?1 || '', typeof(coalesce(?2, ?1))";
            sql.first(statement, &[5i64.into(), Value::Null], |row| {
                same(row.text(0)?, "integer")?;
                same(row.integer(1)?, 2)?;
                same(row.text(2)?, "5")?;
                same(row.text(3)?, "integer")
            })?;
            round_trip(sql, "words", 7i64.into(), |row| same(row.text(0)?, "7"))?;
            Ok(String::new())
        },
        "reals" => |sql| {
            for fraction in [0.1, -2.5, 1e300, f64::MIN_POSITIVE, -1.0 / 3.0] {
                let stored = round_trip(sql, "fraction", Value::Real(fraction), real)?;
                same(stored, fraction)?;
            }
            Ok(String::new())
        },
        "texts" => |sql| {
            for words in [
                "",
                " ",
                "NULL",
                "12",
                "it's \"quoted\" ?1 -- not a comment; ",
                "two\nlines\r\n\ttabbed",
                "a\0b",
                "é e\u{301} ß 漢字 🦀 \u{10ffff}",
            ] {
                let stored = round_trip(sql, "words", words.into(), |row| row.string(0))?;
                same(stored.as_str(), words)?;
            }
            Ok(String::new())
        },
        "blobs" => |sql| {
            let all: Vec<u8> = (0..=255).collect();
            for bytes in [&[][..], &[0], &[0xff, 0xfe], &all] {
                let stored = round_trip(sql, "bytes", bytes.into(), |row| match row.value(0) {
                    Value::Blob(blob) => Ok(blob.to_vec()),
                    other => Err(different(&other, &"a blob")),
                })?;
                same(stored.as_slice(), bytes)?;
            }
            Ok(String::new())
        },
        "null" => |sql| {
            for column in ["whole", "fraction", "words", "bytes"] {
                round_trip(sql, column, Value::Null, |row| {
                    same(row.value(0), Value::Null)
                })?;
            }
            let missing: Option<&str> = None;
            round_trip(sql, "words", missing.into(), |row| {
                same(row.optional_string(0)?, None)?;
                same(row.optional_count(0)?, None)?;
                // There is no such column.
                same(row.value(1), Value::Null)
            })?;
            Ok(String::new())
        },
        "store_mebibyte" => |sql| {
            let (words, bytes) = mebibyte();
            for (column, value) in [
                ("words", words.as_str().into()),
                ("bytes", bytes.as_slice().into()),
            ] {
                let insert = format!("INSERT INTO exam_values ({column}) VALUES (?)");
                sql.execute(&insert, &[value])?;
            }
            Ok(String::new())
        },
        "check_mebibyte" => |sql| {
            let (words, bytes) = mebibyte();
            let mut rows = 0;
            let each: EachRow<'_> = &mut |row| {
                rows += 1;
                let same = match (row.value(0), row.value(1)) {
                    (Value::Text(text), Value::Null) => text == words,
                    (Value::Null, Value::Blob(blob)) => blob == bytes,
                    _ => false,
                };
                if same {
                    Ok(())
                } else {
                    Err(different(&"something else", &"a mebibyte"))
                }
            };
            sql.query("SELECT words, bytes FROM exam_values", &[], each)?;
            same(rows, 2)?;
            Ok(String::new())
        },
        "parameters" => |sql| {
            let rows = vec!["(?)"; 100].join(", ");
            let statement = format!("INSERT INTO exam_values (whole) VALUES {rows}");
            sql.execute(&statement, &numbered(100))?;
            let sum = sql.first("SELECT sum(whole) FROM exam_values", &[], |row| {
                row.integer(0)
            })?;
            Ok(sum.unwrap_or(-1).to_string())
        },
        "deep" => |sql| {
            let terms = vec!["?"; 99].join(" + ");
            let sum = sql.first(&format!("SELECT {terms}"), &numbered(99), |row| {
                row.integer(0)
            })?;
            Ok(sum.unwrap_or(-1).to_string())
        },
        "miscounted" => |sql| {
            for parameters in [&[][..], &[Value::Null], &[Value::Null; 3]] {
                let statement = "INSERT INTO exam_values (words, bytes) VALUES (?, ?)";
                if sql.execute(statement, parameters).is_ok() {
                    return Err(StorageError::Failed(format!(
                        "{} parameters were accepted where 2 are wanted",
                        parameters.len()
                    )));
                }
            }
            Ok(String::new())
        },
        "wrong_types" => |sql| {
            round_trip(sql, "words", "12".into(), |row| {
                let expected = |expected| StorageError::Value {
                    column: 0,
                    expected,
                };
                same(row.integer(0), Err(expected("an integer")))?;
                same(row.time(0), Err(expected("an integer")))
            })?;
            round_trip(sql, "whole", Value::Integer(-1), |row| {
                let expected = |expected| StorageError::Value {
                    column: 0,
                    expected,
                };
                same(row.string(0), Err(expected("text")))?;
                same(row.count(0), Err(expected("a count")))
            })?;
            Ok(String::new())
        },
        "rows" => return many_rows(object, argument.parse().map_err(said)?).await,
        _ => return unknown(step),
    };
    let checked = object.host.transaction(move |transaction| {
        transaction.script(TABLE)?;
        check(transaction.sql())
    });
    checked.await.map_err(said)
}

fn numbered(count: i64) -> Vec<Value<'static>> {
    (0..count).map(Value::from).collect()
}

type Check = fn(&dyn Sql) -> Result<String, StorageError>;

/// Stores a value in a column of its type and reads it back, alone in its row.
fn round_trip<T>(
    sql: &dyn Sql,
    column: &str,
    value: Value<'_>,
    read: impl FnMut(&dyn Row) -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    sql.execute("DELETE FROM exam_values", &[])?;
    let insert = format!("INSERT INTO exam_values ({column}) VALUES (?)");
    sql.execute(&insert, &[value])?;
    sql.first(&format!("SELECT {column} FROM exam_values"), &[], read)?
        .ok_or_else(|| different(&"no row", &"the stored one"))
}

fn real(row: &dyn Row) -> Result<f64, StorageError> {
    match row.value(0) {
        Value::Real(real) => Ok(real),
        other => Err(different(&other, &"a real")),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(actual: T, expected: T) -> Result<(), StorageError> {
    if actual == expected {
        Ok(())
    } else {
        Err(different(&actual, &expected))
    }
}

fn different(actual: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug) -> StorageError {
    StorageError::Failed(format!("expected {expected:?}, found {actual:?}"))
}

fn mebibyte() -> (String, Vec<u8>) {
    const SIZE: usize = 1 << 20;
    let bytes: Vec<u8> = (0..SIZE).map(|index| (index * 31 % 251) as u8).collect();
    let words = bytes
        .iter()
        .map(|byte| char::from(b'a' + byte % 26))
        .collect();
    (words, bytes)
}

async fn many_rows(object: &Rc<ExamObject>, rows: i64) -> Result<String, String> {
    let read = object.host.transaction(move |transaction| {
        transaction.script(TABLE)?;
        let sql = transaction.sql();
        for key in (0..rows).rev() {
            sql.execute(
                "INSERT INTO exam_values (key, whole) VALUES (?, ?)",
                &[key.into(), (key * 2).into()],
            )?;
        }
        let read = sql.all("SELECT whole FROM exam_values ORDER BY key", &[], |row| {
            row.integer(0)
        })?;
        same(read, (0..rows).map(|key| key * 2).collect())
    });
    read.await.map_err(said).map(|()| String::new())
}
