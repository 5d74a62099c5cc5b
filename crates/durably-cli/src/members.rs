//! The way to members of groups: their state by HTTP POST, and whether they are drained by GET.
//!
//! A member's address is what the server's configuration says of it, else what its metadata says
//! (`meta.url`). Below it, `/state` takes a value and `/drained` answers. Redirects are not followed. A
//! token is sent only to addresses that the configuration names, since whoever may write groups may
//! write any address into metadata.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use durably::error::BoxError;
use durably::host::LocalFuture;
use durably::topology::{Member, StateUpdate};
use durably_http::endpoint::MAX_ERROR_BYTES;
use durably_http::topology::{Delivery, drained_query, fill, read_drained, refused};
use durably_native::topology::Members;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, RequestBuilder, Url};
use tokio::runtime::Handle;

use crate::runner::{self, Aborting, read, with_causes};

/// Longer answers are not read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// How members are reached.
#[derive(Clone)]
pub(crate) struct MembersConfig {
    /// The address of a member, with `{topology}`, `{group}` and `{member}` in it; by default it is in
    /// the member's metadata.
    pub(crate) url: Option<String>,
    /// What members ask for; only with `url`.
    pub(crate) token: Option<String>,
    /// How long an answer may take.
    pub(crate) timeout: Duration,
}

impl fmt::Debug for MembersConfig {
    /// Without the token.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MembersConfig")
            .field("url", &self.url)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Reaches members over HTTP.
pub(crate) struct HttpMembers {
    plain: Client,
    secure: Client,
    config: MembersConfig,
    /// Where the connections live, so that objects' threads only wait for answers.
    runtime: Handle,
}

impl HttpMembers {
    /// Members whose connections live on the current runtime.
    pub(crate) fn new(config: MembersConfig) -> reqwest::Result<HttpMembers> {
        Ok(HttpMembers {
            plain: runner::client_for("http")?,
            secure: runner::client_for("https")?,
            config,
            runtime: Handle::current(),
        })
    }

    /// Where a member takes values, or answers.
    fn url(
        &self,
        topology: &str,
        group: &str,
        member: &Member,
        step: &str,
    ) -> Result<Url, BoxError> {
        let text = match &self.config.url {
            Some(template) => fill(template, topology, group, &member.id)?,
            None => {
                let url = member.meta.as_ref().and_then(|meta| meta.get("url"));
                let url = url.and_then(|url| url.as_str());
                url.ok_or("the member's metadata names no url")?.to_owned()
            }
        };
        let mut url = member_url(&text)?;
        let Ok(mut steps) = url.path_segments_mut() else {
            return Err("the member's url cannot have a path".into());
        };
        steps.pop_if_empty().push(step);
        drop(steps);
        Ok(url)
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let client = match url.scheme() {
            "https" => &self.secure,
            _ => &self.plain,
        };
        let request = client.request(method, url).timeout(self.config.timeout);
        match &self.config.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request, and reads the answer if it is a success.
    fn send(
        &self,
        request: Result<RequestBuilder, BoxError>,
    ) -> LocalFuture<Result<Vec<u8>, BoxError>> {
        let runtime = self.runtime.clone();
        Box::pin(async move {
            let request = request?;
            let mut answer = Aborting(runtime.spawn(async move {
                let response = request.send().await.map_err(unreachable)?;
                let status = response.status();
                if status.is_success() {
                    let body = read(response, MAX_ANSWER_BYTES)
                        .await
                        .map_err(unreachable)?;
                    return Ok(body.unwrap_or_default().to_vec());
                }
                let text = match read(response, MAX_ERROR_BYTES).await {
                    Ok(Some(text)) => String::from_utf8_lossy(&text).into_owned(),
                    _ => String::new(),
                };
                Err(refused(&status.to_string(), &text))
            }));
            (&mut answer.0).await?
        })
    }
}

impl Members for HttpMembers {
    fn deliver(
        &self,
        topology: &str,
        member: &Member,
        update: &StateUpdate,
    ) -> LocalFuture<Result<(), BoxError>> {
        let delivery = Delivery {
            topology: topology.into(),
            member: (&member.id).into(),
            update: Cow::Borrowed(update),
        };
        let request = serde_json::to_vec(&delivery)
            .map_err(BoxError::from)
            .and_then(|body| {
                let url = self.url(topology, &update.group, member, "state")?;
                let request = self.request(Method::POST, url);
                Ok(request.header(CONTENT_TYPE, "application/json").body(body))
            });
        let answer = self.send(request);
        Box::pin(async move { answer.await.map(drop) })
    }

    fn drained(
        &self,
        topology: &str,
        group: &str,
        member: &Member,
    ) -> LocalFuture<Result<bool, BoxError>> {
        let request = self.url(topology, group, member, "drained").map(|mut url| {
            url.set_query(Some(&drained_query(topology, group, &member.id)));
            self.request(Method::GET, url)
        });
        let answer = self.send(request);
        Box::pin(async move { read_drained(&answer.await?) })
    }
}

fn unreachable(error: reqwest::Error) -> BoxError {
    with_causes("the member cannot be reached", error).into()
}

/// Reads a member's address.
fn member_url(text: &str) -> Result<Url, BoxError> {
    let url = Url::parse(text).map_err(|error| format!("the member's url is none: {error}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(format!("the member's url must be http or https, not {other:?}").into()),
    }
}

/// Whether a template can be one: with its places filled it is a URL.
pub(crate) fn check_template(template: &str) -> Result<(), String> {
    durably_http::topology::check_template(template, |text| member_url(text).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_host_is_made_of_a_name_what_is_no_host_is_refused() {
        let host = fill("http://{member}.internal/", "t", "g", "evil.example/").unwrap();
        assert!(member_url(&host).is_err());
    }

    #[test]
    fn what_is_no_template_is_told() {
        for wrong in ["", "here", "ftp://h/", "http://h/{member", "http://h/{id}"] {
            assert!(check_template(wrong).is_err(), "{wrong}");
        }
        assert_eq!(check_template("https://{member}.shards:8080/x"), Ok(()));
    }
}
