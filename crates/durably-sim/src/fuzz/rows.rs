//! Rows that are not as they were written: an account and a shard in the middle of their work, with some values replaced.
//! Opening and using them must fail with an error that says so, or work; never panic, never hang.
//!
//! A line damages one value: `TABLE COLUMN ROW VALUE`. The value is JSON - `null`, a number, a text, which stand for
//! SQL's own - or `gone`, for the whole row, or else bytes. Tables and columns have their names; whatever else is there chooses one,
//! and a row is counted from 0 and again from the start after the last: so every line means something. What the tables do not take
//! (they are STRICT) leaves them as they are.

use std::rc::Rc;
use std::time::Duration;

use durably::host::{Object, Sql};
use durably::jobs::{JobShard, NewJob, ShardList};
use durably::semaphore::LeaseOptions;
use durably::semaphore::protocol::Message;
use durably::{StorageError, host};
use serde_json::Value;

use super::lines;
use super::stand::{Stand, columns_of, tamper};
use crate::object::VirtualObject;

/// Whoever has no storage, and whose silence is noticed.
const EPHEMERAL: &[u8] =
    br#"{"type":"request","v":1,"clientId":"e1","clientTtlMs":60000,"requestId":"r",
"demand":[{"group":"c","count":1,"oldestAt":999999999000}],"grants":[],"leases":[]}"#;

const SYNC: &[u8] =
    br#"{"type":"sync","v":1,"clientId":"e1","clientTtlMs":60000,"grants":[],"leases":[]}"#;

/// Damages rows as the input says and uses the objects.
///
/// # Panics
///
/// If it finds a fault.
pub fn rows(input: &[u8]) {
    let stand = at_work();
    stand.account.crash();
    stand.shard.crash();
    for line in lines(input) {
        damage(&stand, line);
    }
    use_account(&stand);
    use_shard(&stand);
    stand.advance(Duration::from_secs(40));
    use_account(&stand);
    use_shard(&stand);
    stand.advance(Duration::from_secs(40));
}

/// Objects with rows in every table.
fn at_work() -> Stand {
    let stand = Stand::new();
    let leases = LeaseOptions {
        permits_per_lease: 2,
        ttl: Duration::from_secs(30),
        ..LeaseOptions::default()
    };
    let set = stand.account(|account| async move {
        account.set_limit(Some(8)).await?;
        account.set_group_limit("b".to_owned(), Some(2)).await?;
        account
            .set_shards(vec!["acme-0".to_owned(), "acme-1".to_owned()])
            .await?;
        account.set_shards(vec!["acme-0".to_owned()]).await?;
        account.set_leases(Some(Some(leases))).await
    });
    assert!(matches!(set, Ok(Ok(()))));
    let sent =
        stand.account(|account| async move { account.semaphore().handle_json(EPHEMERAL).await });
    assert!(matches!(sent, Ok(Ok(_))));
    for group in ["a", "b"] {
        for (number, body) in ["ends", "hang", "retry", "fail", "hang"]
            .into_iter()
            .enumerate()
        {
            submit(&stand, group, number, body);
            stand.advance(Duration::from_millis(30));
        }
    }
    stand.advance(Duration::from_millis(500));
    stand
}

fn submit(stand: &Stand, group: &str, number: usize, body: &str) {
    let job = NewJob {
        account: "acme".to_owned(),
        id: format!("{group}-{number}"),
        group: group.to_owned(),
        body: Value::from(body),
    };
    use_it(stand, move |shard| async move {
        shard.submit("acme", 2, vec![job]).await
    });
}

/// What became of the call does not matter, as long as it is told.
fn use_it<T, E, F>(stand: &Stand, call: impl FnOnce(Rc<JobShard>) -> F + 'static)
where
    T: 'static,
    E: std::error::Error + 'static,
    F: Future<Output = Result<T, E>> + 'static,
{
    match stand.shard(call) {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => assert!(!error.to_string().is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn use_account(stand: &Stand) {
    let _ = stand.account(|account| async move { account.usage().await });
    let _ = stand.account(|account| async move { account.standing("b").await });
    let _ = stand.account(|account| async move { account.holdings(None, 100).await });
    let _ = stand.account(|account| async move { account.shards_or_default(2).await });
    for message in [EPHEMERAL, SYNC] {
        let message = Message::from_json(message).expect("a message");
        let _ = stand.account(|account| async move { account.handle(message).await });
    }
    let _ = stand.account(|account| async move { account.force_release("e1", None, "gone").await });
    let _ = stand.account(|account| async move { account.set_limit(Some(5)).await });
    let _ = stand.account(|account| async move { account.set_leases(Some(None)).await });
}

fn use_shard(stand: &Stand) {
    for id in ["a-0", "a-1", "b-3", "b-4"] {
        use_it(
            stand,
            move |shard| async move { shard.status("acme", id).await },
        );
        use_it(stand, move |shard| async move {
            shard.cancel("acme", id, true).await
        });
    }
    use_it(stand, |shard| async move {
        shard.knows("acme", 2, &["a-1".to_owned()]).await
    });
    use_it(stand, |shard| async move {
        let current = ShardList {
            version: 2,
            shards: vec!["acme-0".to_owned()],
        };
        shard.is_drained("acme", &current).await
    });
    let _ = stand.shard(|shard| async move { shard.account_jobs("acme") });
    submit(stand, "a", 9, "ends");
    submit(stand, "d", 9, "ends");
}

fn damage(stand: &Stand, line: &[u8]) {
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let mut word = || words.next().unwrap_or_default();
    let (table, column, row, value) = (word(), word(), word(), word());
    let row = std::str::from_utf8(row)
        .ok()
        .and_then(|row| row.parse().ok())
        .unwrap_or(0);
    let tables = [tables_of(&stand.account), tables_of(&stand.shard)];
    let tables: Vec<_> = tables
        .iter()
        .enumerate()
        .flat_map(|(object, tables)| {
            tables
                .iter()
                .map(move |(table, columns)| (object, table, columns))
        })
        .collect();
    let names: Vec<&str> = tables.iter().map(|(_, table, _)| table.as_str()).collect();
    let (object, table, columns) = tables[chosen(&names, table)];
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let column = columns[chosen(&columns, column)];
    match object {
        0 => damage_row(&stand.account, table, column, row, value),
        _ => damage_row(&stand.shard, table, column, row, value),
    }
}

fn damage_row<C: Object>(
    object: &VirtualObject<C>,
    table: &str,
    column: &str,
    row: u64,
    value: &[u8],
) {
    let count = format!("SELECT count(*) FROM {table}");
    let rows = object
        .storage()
        .read(move |sql: &dyn Sql| sql.first(&count, &[], |row| row.count(0)));
    let rows = rows.ok().flatten().unwrap_or(0).max(1);
    // The first column is the key or leads it, and all tables have few rows.
    let keys = {
        let table = table.to_owned();
        object.storage().read(move |sql| {
            let columns = columns_of(sql)?;
            let columns = columns.into_iter().find(|(name, _)| *name == table);
            columns
                .map(|(_, columns)| columns)
                .ok_or_else(|| StorageError::Failed("gone".to_owned()))
        })
    };
    let Ok(keys) = keys else { return };
    let keys = keys.join(", ");
    let at = format!(
        "({keys}) = (SELECT {keys} FROM {table} ORDER BY {keys} LIMIT 1 OFFSET {})",
        row % rows
    );
    let set = format!("UPDATE {table} SET {column} = ?1 WHERE {at}");
    if value == b"gone" {
        return tamper(
            object.storage(),
            format!("DELETE FROM {table} WHERE ?1 IS NULL AND {at}"),
            host::Value::Null,
        );
    }
    let parsed = serde_json::from_slice::<Value>(value);
    let value = match &parsed {
        Ok(Value::Null) => host::Value::Null,
        Ok(Value::Bool(value)) => host::Value::Integer((*value).into()),
        Ok(Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => host::Value::Integer(integer),
            (None, Some(real)) => host::Value::Real(real),
            (None, None) => host::Value::Null,
        },
        Ok(Value::String(text)) => host::Value::Text(text),
        _ => host::Value::Blob(value),
    };
    tamper(object.storage(), set, value);
}

fn tables_of<C: Object>(object: &VirtualObject<C>) -> Vec<(String, Vec<String>)> {
    let tables = object.storage().read(|sql| columns_of(sql));
    tables.unwrap_or_default()
}

/// The place of the name in the list, or that which it stands for.
fn chosen(names: &[&str], name: &[u8]) -> usize {
    let known = names.iter().position(|known| known.as_bytes() == name);
    known.unwrap_or_else(|| {
        let sum = name.iter().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add((*byte).into())
        });
        sum % names.len()
    })
}
