//! Requests that objects make: to the endpoint of jobs, and to members by their addresses. What they say, and
//! what their answers mean, is not known here.

use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use worker::js_sys::{Function, Object, Promise, Reflect};

#[wasm_bindgen]
extern "C" {
    type Response;

    #[wasm_bindgen(method, catch, getter)]
    fn status(this: &Response) -> Result<u16, JsValue>;

    #[wasm_bindgen(method, catch, getter, js_name = statusText)]
    fn status_text(this: &Response) -> Result<String, JsValue>;

    #[wasm_bindgen(method, catch, getter)]
    fn headers(this: &Response) -> Result<Headers, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn text(this: &Response) -> Result<Promise, JsValue>;

    type Headers;

    #[wasm_bindgen(method, catch)]
    fn get(this: &Headers, name: &str) -> Result<Option<String>, JsValue>;
}

/// A request. Redirects are not followed.
pub(crate) struct Outgoing<'a> {
    pub(crate) method: &'a str,
    pub(crate) url: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: Option<&'a str>,
    /// An `AbortSignal` that ends it.
    pub(crate) signal: JsValue,
}

/// An answer, read to its end.
pub(crate) struct Incoming {
    pub(crate) status: u16,
    pub(crate) status_text: String,
    pub(crate) content_type: Option<String>,
    pub(crate) text: String,
}

/// Begins a request. `fetcher` has the method `fetch`: it is a service that is bound, or the global object.
pub(crate) fn begin(fetcher: &JsValue, request: &Outgoing<'_>) -> Result<Promise, JsValue> {
    let headers = Object::new();
    for (name, value) in request.headers {
        Reflect::set(&headers, &(*name).into(), &(*value).into())?;
    }
    let options = Object::new();
    for (name, value) in [
        ("method", request.method.into()),
        ("redirect", "manual".into()),
        ("headers", headers.into()),
        (
            "body",
            request.body.map_or(JsValue::UNDEFINED, JsValue::from),
        ),
        ("signal", request.signal.clone()),
    ] {
        Reflect::set(&options, &name.into(), &value)?;
    }
    let fetch: Function = Reflect::get(fetcher, &"fetch".into())?.dyn_into()?;
    fetch
        .call2(fetcher, &request.url.into(), &options)?
        .dyn_into()
}

/// The answer to a request that has begun. It is read whole whatever it is: what it tells of has not ended before.
pub(crate) async fn end(begun: Promise) -> Result<Incoming, JsValue> {
    let response: Response = JsFuture::from(begun).await?.unchecked_into();
    let text = JsFuture::from(response.text()?).await?;
    Ok(Incoming {
        status: response.status()?,
        status_text: response.status_text()?,
        content_type: response.headers()?.get("content-type")?,
        text: text.as_string().unwrap_or_default(),
    })
}
