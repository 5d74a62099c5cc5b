//! What a watch tells of a published group, as server-sent events.

use durably::topology::Edition;
use serde_json::json;

use super::edition_tag;

/// What who watches has been told last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    Nothing,
    /// That nothing is published.
    Missing,
    /// The edition with this tag.
    Edition(String),
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// What it says, in JSON.
    pub data: String,
    /// What a client names that connects again.
    pub id: Option<String>,
}

impl Told {
    /// What a client has that names this header `Last-Event-ID`.
    pub fn before(last_event_id: Option<&str>) -> Told {
        last_event_id.map_or(Told::Nothing, |id| Told::Edition(format!("\"{id}\"")))
    }

    /// What is to be told of what is published: of an edition with its text, or without one if it says
    /// that the group was deleted. `None` if it has been told already.
    pub fn news(&mut self, published: Option<(&Edition, Option<&[u8]>)>) -> Option<Event> {
        let (told, event) = match published {
            None => {
                let event = Event {
                    name: "missing",
                    data: "{}".to_owned(),
                    id: None,
                };
                (Told::Missing, event)
            }
            Some((edition, text)) => {
                let tag = edition_tag(edition);
                let (name, data) = match text {
                    // It was read as JSON, which is UTF-8.
                    Some(text) => ("snapshot", String::from_utf8_lossy(text).into_owned()),
                    None => ("deleted", json!({ "version": edition.version }).to_string()),
                };
                let id = Some(tag.trim_matches('"').to_owned());
                (Told::Edition(tag), Event { name, data, id })
            }
        };
        if told == *self {
            return None;
        }
        *self = told;
        Some(event)
    }
}

impl Event {
    /// As it goes over the wire.
    pub fn to_text(&self) -> String {
        let mut text = format!("event: {}\n", self.name);
        for line in self.data.split(['\n', '\r']) {
            text.push_str(&format!("data: {line}\n"));
        }
        if let Some(id) = &self.id {
            text.push_str(&format!("id: {id}\n"));
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use durably::Timestamp;
    use durably::topology::Incarnation;

    use super::*;

    #[test]
    fn what_is_known_is_not_told_again() {
        let edition = |version| Edition {
            coordinator: "c".to_owned(),
            incarnation: Incarnation {
                created_at: Timestamp::from_millis(5),
                nonce: "0f".to_owned(),
            },
            version,
        };
        let mut told = Told::before(Some("1-5-0f"));
        assert_eq!(told.news(Some((&edition(1), Some(b"{}")))), None);
        let event = told.news(Some((&edition(2), Some(b"{}"))));
        assert_eq!(
            event.map(|event| event.to_text()).as_deref(),
            Some("event: snapshot\ndata: {}\nid: 2-5-0f\n\n")
        );
        let event = told.news(Some((&edition(3), None)));
        assert_eq!(
            event.map(|event| event.to_text()).as_deref(),
            Some("event: deleted\ndata: {\"version\":3}\nid: 3-5-0f\n\n")
        );
        assert_eq!(told.news(Some((&edition(3), None))), None);
        let missing = told.news(None).expect("news");
        assert_eq!(missing.to_text(), "event: missing\ndata: {}\n\n");
        assert_eq!(told.news(None), None);
    }
}
