//! The library's events on the platform's console, which is where a worker's log comes from
//! (`wrangler tail`). Nothing else is there to be told that a delivery or an alarm fails.

use std::fmt::{self, Write};

use js_sys::JsString;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(catch, js_namespace = console, js_name = error)]
    fn console_error(text: &JsString) -> Result<(), JsValue>;

    #[wasm_bindgen(catch, js_namespace = console, js_name = warn)]
    fn console_warn(text: &JsString) -> Result<(), JsValue>;
}

/// Has warnings and errors written to the console, one line each, from now on and for the whole isolate. Does
/// nothing if events go somewhere already.
pub fn log_to_console() {
    let _ = tracing::subscriber::set_global_default(Console);
}

struct Console;

impl Subscriber for Console {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().target().to_owned());
        event.record(&mut line);
        let text = JsString::from(line.0);
        // Where nobody listens there is nobody to be told.
        let _ = match *event.metadata().level() {
            Level::ERROR => console_error(&text),
            _ => console_warn(&text),
        };
    }

    // Spans say nothing here.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// `target: message key=value …`
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Into memory: this cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, ": {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
