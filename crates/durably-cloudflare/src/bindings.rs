//! What a worker's environment has under a name.

use js_sys::Reflect;
use wasm_bindgen::{JsCast, JsValue};

/// A binding is missing or is something else.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the worker has no binding {name} to {what}: {remedy}")]
pub struct BindingError {
    /// The binding's name.
    pub name: String,
    /// What it was to be bound to.
    pub what: &'static str,
    /// What to write into the worker's configuration.
    pub remedy: String,
}

impl BindingError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        "missing_binding"
    }
}

/// The binding `name`, which must have these methods.
pub(crate) fn bound<T: JsCast>(
    environment: &JsValue,
    name: &str,
    methods: &[&str],
    what: &'static str,
    remedy: impl FnOnce() -> String,
) -> Result<T, BindingError> {
    let property = |of: &JsValue, name: &str| Reflect::get(of, &name.into()).ok();
    let found = property(environment, name).filter(|binding| {
        binding.is_object()
            && methods
                .iter()
                .all(|method| property(binding, method).is_some_and(|it| it.is_function()))
    });
    found
        .map(JsCast::unchecked_into)
        .ok_or_else(|| BindingError {
            name: name.to_owned(),
            what,
            remedy: remedy(),
        })
}

/// What to write into the worker's configuration for a class.
pub(crate) fn class_remedy(binding: &str, class: &str) -> String {
    format!(
        "add {{ \"name\": \"{binding}\", \"class_name\": \"{class}\" }} to durable_objects.bindings in \
         wrangler.jsonc, and the class to new_sqlite_classes of its migrations"
    )
}
