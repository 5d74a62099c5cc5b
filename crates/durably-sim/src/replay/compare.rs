//! What counts as equal: JSON values, numbers by value, and ids by a table that grows as the trace
//! shows them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::trace::Step;

/// Whether two JSON values are the same: arrays in order, objects in any, numbers by value.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            left == right
                || match (left.as_i128(), right.as_i128()) {
                    (Some(left), Some(right)) => left == right,
                    _ => left.as_f64() == right.as_f64(),
                }
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(key, left)| right.get(key).is_some_and(|right| same(left, right)))
        }
        _ => left == right,
    }
}

/// Which of the trace's ids (`g1`, `l1`) stands for which real one.
#[derive(Default)]
pub(super) struct Names {
    /// The trace's ids are those that a real holder gave.
    recorded: bool,
    real: BTreeMap<String, String>,
    named: BTreeMap<String, String>,
}

impl Names {
    pub(super) fn new(recorded: bool) -> Names {
        Names {
            recorded,
            ..Names::default()
        }
    }

    /// Takes note of the ids that `expected` shows for the first time: they stand for what is at the
    /// same place of the real outputs.
    pub(super) fn learn(&mut self, expected: &Value, actual: &[Value]) {
        let expected = expected.as_array().map_or(&[][..], Vec::as_slice);
        for (expected, actual) in expected.iter().zip(actual) {
            let mut shown = Vec::new();
            visit_ids(&mut expected.clone(), &mut |id| shown.push(id.clone()));
            let mut given = Vec::new();
            visit_ids(&mut actual.clone(), &mut |id| given.push(id.clone()));
            for (name, real) in shown.into_iter().zip(given) {
                // An id cannot stand for two: then the outputs differ, and that is shown.
                let is_new = !self.real.contains_key(&name) && !self.named.contains_key(&real);
                if (self.recorded || is_canonical(&name)) && is_new {
                    self.bind(name, real);
                }
            }
        }
    }

    fn bind(&mut self, name: String, real: String) {
        self.named.insert(real.clone(), name.clone());
        self.real.insert(name, real);
    }

    /// The step with real ids. Rows to be loaded get ordered ones of their own.
    pub(super) fn inward(&mut self, step: &Step) -> Step {
        let mut step = step.clone();
        if step.op == "load" {
            for (list, member) in [("grants", "grantId"), ("leases", "leaseId")] {
                let rows = step.get_mut(list).and_then(Value::as_array_mut);
                for row in rows.into_iter().flatten() {
                    let created_at = row.get("createdAt").and_then(Value::as_u64).unwrap_or(0);
                    if let Some(Value::String(id)) = row.get_mut(member) {
                        let real = ordered_id(created_at, self.real.len());
                        self.bind(std::mem::replace(id, real.clone()), real);
                    }
                }
            }
        }
        if let Some(message) = step.get_mut("message") {
            visit_lists(message, &mut |id| {
                if let Some(real) = self.real.get(id) {
                    id.clone_from(real);
                }
            });
        }
        step
    }

    /// Puts the trace's ids into an output.
    pub(super) fn outward(&self, output: &mut Value) {
        visit_ids(output, &mut |id| {
            if let Some(name) = self.named.get(id) {
                id.clone_from(name);
            }
        });
    }
}

/// Whether the trace numbers this id, rather than having made it up.
fn is_canonical(id: &str) -> bool {
    let number = id.strip_prefix(['g', 'l']).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// An id in the form that the holder makes, so that rows keep the order in which they were listed.
fn ordered_id(created_at: u64, index: usize) -> String {
    format!(
        "{:08x}-{:04x}-7000-8000-{index:012x}",
        created_at >> 16,
        created_at & 0xffff
    )
}

/// Calls `each` for every id in an output, in the order in which they are numbered.
fn visit_ids(output: &mut Value, each: &mut dyn FnMut(&mut String)) {
    match output["t"].as_str() {
        Some("reply") => {
            if let Some(value) = output.get_mut("value") {
                visit_lists(value, each);
            }
        }
        Some("state") => visit_lists(output, each),
        Some("event") => {
            for member in ["grantId", "leaseId"] {
                let event = output.get_mut("event");
                if let Some(Value::String(id)) = event.and_then(|event| event.get_mut(member)) {
                    each(id);
                }
            }
        }
        _ => {}
    }
}

/// The same for whatever has lists of grants, results and leases.
fn visit_lists(value: &mut Value, each: &mut dyn FnMut(&mut String)) {
    for (list, member) in [
        ("grants", "grantId"),
        ("grantResults", "grantId"),
        ("leases", "leaseId"),
    ] {
        let entries = value.get_mut(list).and_then(Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            if let Some(Value::String(id)) = entry.get_mut(member) {
                each(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_equal_by_value_and_arrays_in_order() {
        assert!(same(
            &json!({"a": 1, "b": [1, 2.0]}),
            &json!({"b": [1.0, 2], "a": 1})
        ));
        assert!(!same(&json!([1, 2]), &json!([2, 1])));
        assert!(!same(&json!({"a": 1}), &json!({"a": 1, "b": null})));
        assert!(!same(&json!(1), &json!("1")));
        let large = 9_007_199_254_740_993u64;
        assert!(!same(&json!(large), &json!(large + 1)));
    }

    #[test]
    fn ids_stand_for_what_is_at_the_same_place() {
        let mut names = Names::default();
        let grant =
            |id: &str| json!({"t": "reply", "id": "r", "value": {"grants": [{"grantId": id}]}});
        let mut actual = [grant("real-1"), grant("real-2"), grant("real-1")];
        names.learn(&json!([grant("g1"), grant("g2"), grant("g3")]), &actual);
        actual.iter_mut().for_each(|output| names.outward(output));
        // The third shows an id again, which the trace says is new.
        assert_eq!(actual, [grant("g1"), grant("g2"), grant("g1")]);
    }

    #[test]
    fn ids_that_a_trace_made_up_are_never_bound() {
        let mut names = Names::default();
        let event = |id: &str| json!({"t": "event", "event": {"grantId": id}});
        let mut actual = [event("real")];
        names.learn(&json!([event("gx1")]), &actual);
        names.outward(&mut actual[0]);
        assert_eq!(actual, [event("real")]);
    }
}
