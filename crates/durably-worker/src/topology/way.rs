//! The way to members of groups. A member is at the address that the settings say, else at the one in its
//! metadata (`meta.url`); one without an address is an object of this worker, of the class that is
//! bound to `TOPOLOGY_MEMBER`, named like it. Redirects are not followed. A token is sent only to addresses that
//! the settings name, since whoever may write groups may write any address into metadata.

use std::borrow::Cow;
use std::rc::Rc;

use durably::ConfigError;
use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{Member, StateUpdate};
use durably_cloudflare::{ObjectStubs, exception_text};
use durably_http::topology::{Delivery, drained_query, fill, read_drained, refused};
use wasm_bindgen::prelude::*;

use crate::outgoing::{self, Incoming, Outgoing};
use crate::request::Request;
use crate::settings::Environment;
use crate::way::{ask, objects};

/// Longer answers are not read, and more of a refusal is not told.
const MAX_ANSWER_BYTES: usize = 64 << 10;
const MAX_ERROR_BYTES: usize = 1 << 10;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_name = URL)]
    type Url;

    #[wasm_bindgen(constructor, catch, js_class = "URL")]
    fn new(text: &str) -> Result<Url, JsValue>;

    #[wasm_bindgen(method, catch, getter)]
    fn protocol(this: &Url) -> Result<String, JsValue>;

    #[wasm_bindgen(method, catch, getter)]
    fn pathname(this: &Url) -> Result<String, JsValue>;

    #[wasm_bindgen(method, catch, setter)]
    fn set_pathname(this: &Url, path: &str) -> Result<(), JsValue>;

    #[wasm_bindgen(method, catch, setter)]
    fn set_search(this: &Url, query: &str) -> Result<(), JsValue>;

    #[wasm_bindgen(method, catch, getter)]
    fn href(this: &Url) -> Result<String, JsValue>;

    type AbortSignal;

    #[wasm_bindgen(static_method_of = AbortSignal, catch)]
    fn timeout(millis: f64) -> Result<JsValue, JsValue>;
}

fn thrown(exception: &JsValue) -> BoxError {
    let problem = exception_text(exception);
    format!("the member cannot be reached: {problem}").into()
}

/// A member's address.
fn member_url(text: &str) -> Result<Url, BoxError> {
    let none = |exception| -> BoxError {
        format!("the member's url is none: {}", exception_text(&exception)).into()
    };
    let url = Url::new(text).map_err(none)?;
    match url.protocol().map_err(none)?.as_str() {
        "http:" | "https:" => Ok(url),
        other => {
            let scheme = other.trim_end_matches(':');
            Err(format!("the member's url must be http or https, not {scheme:?}").into())
        }
    }
}

/// Whether a text is the address of a member.
pub(super) fn check_url(text: &str) -> Result<(), BoxError> {
    member_url(text).map(drop)
}

/// The members of one topology.
#[derive(Clone)]
pub(super) struct Members(Rc<Inner>);

struct Inner {
    topology: String,
    /// A template of their addresses, and what they ask for.
    configured: Option<(String, Option<String>)>,
    environment: Environment,
    timeout_ms: f64,
}

/// Where a member is.
enum At {
    Url(Url, Option<String>),
    Object(ObjectStubs),
}

impl Members {
    pub(super) fn new(environment: &Environment, topology: &str) -> Result<Members, ConfigError> {
        Ok(Members(Rc::new(Inner {
            topology: topology.to_owned(),
            configured: environment.member_url()?,
            environment: environment.clone(),
            timeout_ms: environment.delivery_timeout()?.as_millis() as f64,
        })))
    }

    fn find(&self, group: &str, member: &Member, step: &str) -> Result<At, BoxError> {
        let inner = &self.0;
        let (text, token) = match &inner.configured {
            Some((template, token)) => {
                let text = fill(template, &inner.topology, group, &member.id)?;
                (text, token.clone())
            }
            None => {
                let url = member.meta.as_ref().and_then(|meta| meta.get("url"));
                let Some(url) = url.and_then(|url| url.as_str()) else {
                    let stubs = objects(&inner.environment, "TOPOLOGY_MEMBER", "TopologyMember");
                    let stubs = stubs.map_err(|error| {
                        format!("the member's metadata names no url, and {error}")
                    })?;
                    // What is wished for it goes before what is wished for all.
                    return Ok(At::Object(match member.location_hint.clone() {
                        Some(hint) => stubs.with_location_hints(move |_| Some(hint.clone())),
                        None => stubs,
                    }));
                };
                (url.to_owned(), None)
            }
        };
        let url = member_url(&text)?;
        let below = |url: &Url| {
            let path = url.pathname()?;
            url.set_pathname(&format!("{}/{step}", path.trim_end_matches('/')))
        };
        below(&url).map_err(|exception| thrown(&exception))?;
        Ok(At::Url(url, token))
    }

    /// Hands a value to a member.
    pub(super) fn deliver(
        &self,
        member: &Member,
        update: StateUpdate,
    ) -> LocalFuture<Result<(), BoxError>> {
        let (members, member) = (self.clone(), member.clone());
        Box::pin(async move {
            let at = members.find(&update.group, &member, "state")?;
            let delivery = Delivery {
                topology: Cow::Borrowed(&members.0.topology),
                member: Cow::Borrowed(&member.id),
                update: Cow::Owned(update),
            };
            let body = serde_json::to_string(&delivery)?;
            members
                .send(at, &member, "POST", "state", "", Some(body))
                .await?;
            Ok(())
        })
    }

    /// Asks whether a draining member holds nothing any more.
    pub(super) fn drained(
        &self,
        group: &str,
        member: &Member,
    ) -> LocalFuture<Result<bool, BoxError>> {
        let (members, group, member) = (self.clone(), group.to_owned(), member.clone());
        Box::pin(async move {
            let at = members.find(&group, &member, "drained")?;
            let query = drained_query(&members.0.topology, &group, &member.id);
            let answer = members.send(at, &member, "GET", "drained", &query, None);
            read_drained(answer.await?.as_bytes())
        })
    }

    /// Sends a request, and reads the answer if it is a success.
    async fn send(
        &self,
        at: At,
        member: &Member,
        method: &str,
        step: &str,
        query: &str,
        body: Option<String>,
    ) -> Result<String, BoxError> {
        let (status, text) = match at {
            At::Object(stubs) => {
                let request = Request {
                    method: method.to_owned(),
                    path: vec![step.to_owned()],
                    query: query.to_owned(),
                    content_type: Some("application/json".to_owned()),
                    body: body.unwrap_or_default(),
                };
                let answer = ask(&stubs, &member.id, request).await;
                (answer.status, answer.body)
            }
            At::Url(url, token) => self
                .fetched(&url, token, method, query, body)
                .await
                .map_err(|exception| thrown(&exception))?,
        };
        if (200..300).contains(&status) {
            return Ok(text);
        }
        let text = if text.len() > MAX_ERROR_BYTES {
            ""
        } else {
            &text
        };
        Err(refused(&status.to_string(), text))
    }

    async fn fetched(
        &self,
        url: &Url,
        token: Option<String>,
        method: &str,
        query: &str,
        body: Option<String>,
    ) -> Result<(u16, String), JsValue> {
        if !query.is_empty() {
            url.set_search(query)?;
        }
        let authorization = token.map(|token| format!("Bearer {token}"));
        let mut headers = Vec::new();
        if body.is_some() {
            headers.push(("content-type", "application/json"));
        }
        if let Some(authorization) = &authorization {
            headers.push(("authorization", authorization));
        }
        let begun = outgoing::begin(
            &worker::js_sys::global(),
            &Outgoing {
                method,
                url: &url.href()?,
                headers: &headers,
                body: body.as_deref(),
                signal: AbortSignal::timeout(self.0.timeout_ms)?,
            },
        );
        let Incoming { status, text, .. } = outgoing::end(begun?).await?;
        let text = if text.len() > MAX_ANSWER_BYTES {
            String::new()
        } else {
            text
        };
        Ok((status, text))
    }
}
