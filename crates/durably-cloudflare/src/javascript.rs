//! The platform as JavaScript shows it: what `worker` does not wrap, or wraps without catching
//! exceptions. One that nobody catches passes through Rust's frames and leaves its request hanging.

use js_sys::{Array, Iterator, Promise};
use wasm_bindgen::closure::ScopedClosure;
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    /// An object's storage.
    #[derive(Clone)]
    pub(crate) type Storage;

    #[wasm_bindgen(method, catch, getter)]
    pub(crate) fn sql(this: &Storage) -> Result<SqlStorage, JsValue>;

    /// Runs `work` within a savepoint, which is undone if it throws.
    #[wasm_bindgen(method, catch, js_name = transactionSync)]
    pub(crate) fn transaction_sync(
        this: &Storage,
        work: &ScopedClosure<'_, dyn FnMut() -> Result<(), JsValue>>,
    ) -> Result<JsValue, JsValue>;

    /// Takes effect at once, in the transaction that is open; the promise waits for the disk.
    #[wasm_bindgen(method, catch, js_name = setAlarm)]
    pub(crate) fn set_alarm(this: &Storage, millis: f64) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch, js_name = deleteAlarm)]
    pub(crate) fn delete_alarm(this: &Storage) -> Result<Promise, JsValue>;

    #[wasm_bindgen(method, catch, js_name = getAlarm)]
    pub(crate) fn get_alarm(this: &Storage) -> Result<Promise, JsValue>;

    #[derive(Clone)]
    pub(crate) type SqlStorage;

    #[wasm_bindgen(method, catch, variadic)]
    pub(crate) fn exec(
        this: &SqlStorage,
        statement: &JsValue,
        parameters: &Array,
    ) -> Result<Cursor, JsValue>;

    pub(crate) type Cursor;

    /// Rows as arrays. Once it has thrown it must not be asked again: it would go on.
    #[wasm_bindgen(method, catch)]
    pub(crate) fn raw(this: &Cursor) -> Result<Iterator, JsValue>;

    #[wasm_bindgen(method, catch, getter, js_name = rowsRead)]
    pub(crate) fn rows_read(this: &Cursor) -> Result<f64, JsValue>;

    #[wasm_bindgen(method, catch, getter, js_name = rowsWritten)]
    pub(crate) fn rows_written(this: &Cursor) -> Result<f64, JsValue>;

    #[wasm_bindgen(catch, js_name = setTimeout)]
    pub(crate) fn set_timeout(
        callback: &Closure<dyn FnMut()>,
        millis: u32,
    ) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(catch, js_name = clearTimeout)]
    pub(crate) fn clear_timeout(timer: &JsValue) -> Result<(), JsValue>;

    #[wasm_bindgen(catch, js_namespace = crypto, js_name = getRandomValues)]
    pub(crate) fn get_random_values(bytes: &mut [u8]) -> Result<JsValue, JsValue>;
}

/// What an exception says.
pub fn exception_text(exception: &JsValue) -> String {
    match exception.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => exception
            .as_string()
            .unwrap_or_else(|| format!("{exception:?}")),
    }
}
