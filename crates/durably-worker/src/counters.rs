//! What an object says of its costs.

use durably_cloudflare::Counters;
use serde_json::json;

/// The counters as JSON.
pub(crate) fn text(counters: Counters) -> String {
    json!({
        "rowsRead": counters.rows_read,
        "rowsWritten": counters.rows_written,
        "requests": counters.requests,
        "alarms": counters.alarms,
        "alarmsSet": counters.alarms_set,
    })
    .to_string()
}
