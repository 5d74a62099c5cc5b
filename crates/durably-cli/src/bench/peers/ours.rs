//! Our own clients: a `SemaphoreClient` that calls the holder's object within the process, and one
//! that asks a server in another process over HTTP.

use std::path::Path;

use durably::error::BoxError;
use durably::semaphore::client::{ClientError, HolderCall, SemaphoreClient, holder_fn};
use durably::semaphore::protocol::{
    Demand, GrantReport, GrantResult, GrantStatus, PermitRequest, PermitSync, Reply,
};
use durably_native::{System, SystemConfig};
use tower_service::Service;

use super::{Answer, Client, Clients, LIMIT};
use crate::bench::clients::{Clock, Server};
use crate::bench::objects::{Holder, HolderConfig, holders_with, now};

const KEY: &str = "account";

/// A system of one holder, and its clients.
pub(super) fn in_process(folder: &Path) -> Result<(System, Clients), BoxError> {
    let config = HolderConfig {
        limit: LIMIT as u64,
        ..HolderConfig::default()
    };
    let system = holders_with(folder, SystemConfig::default(), config)?;
    let holder = system.object::<Holder>(KEY);
    let clients = (0..LIMIT).map(|number| {
        let holder = holder.clone();
        let transport = holder_fn(move |call: HolderCall| {
            let holder = holder.clone();
            async move {
                let answer = holder
                    .call(move |holder| async move { holder.handle(call.message).await })
                    .await;
                Ok::<Reply, ClientError>(answer.map_err(ClientError::unreachable)??)
            }
        });
        client(number, transport)
    });
    let clients = clients.collect();
    Ok((system, clients))
}

/// A server of its own, and clients with a connection each.
pub(super) async fn over_http(folder: &Path) -> Result<(Server, Clients), BoxError> {
    let server = Server::start(&folder.join("serve"), LIMIT as u64, "1ms").await?;
    let mut clients: Clients = Vec::new();
    for number in 0..LIMIT {
        clients.push(client(number, server.transport().await?));
    }
    Ok((server, clients))
}

fn client<S>(number: usize, transport: S) -> Box<dyn Client>
where
    S: Service<HolderCall, Response = Reply, Error = ClientError> + Clone + 'static,
{
    Box::new(Cycler {
        id: format!("client-{number:02}"),
        client: SemaphoreClient::new(transport, Clock),
        held: None,
    })
}

struct Cycler<S> {
    id: String,
    client: SemaphoreClient<S, Clock>,
    /// The grant of the last cycle, not given back yet.
    held: Option<String>,
}

impl<S> Cycler<S>
where
    S: Service<HolderCall, Response = Reply, Error = ClientError> + Clone,
{
    async fn acquire(&mut self) -> Result<(), BoxError> {
        let grant_id = loop {
            let demand = Demand {
                group: "default".to_owned(),
                count: 1,
                oldest_at: now(),
            };
            let request = PermitRequest {
                client_id: self.id.clone(),
                demand: vec![demand],
                grants: self
                    .held
                    .take()
                    .map(|id| report(id, 1))
                    .into_iter()
                    .collect(),
                leases: None,
                sent_at: None,
                request_id: None,
                request_number: None,
                wait_ms: None,
                client_ttl_ms: None,
            };
            let reply = self.client.request(KEY, request).await?;
            if let Some(grant) = reply.grants.into_iter().next() {
                break grant.grant_id;
            }
        };
        self.sync(report(grant_id.clone(), 0)).await?;
        self.held = Some(grant_id);
        Ok(())
    }

    async fn sync(&self, report: GrantReport) -> Result<(), BoxError> {
        let sync = PermitSync {
            client_id: self.id.clone(),
            grants: vec![report],
            leases: None,
            sent_at: None,
            client_ttl_ms: None,
        };
        let reply = self.client.sync(KEY, sync).await?;
        let is_confirmed =
            |result: &GrantResult| result.claimed == 1 && result.status == GrantStatus::Ok;
        match reply.grant_results.iter().all(is_confirmed) {
            true => Ok(()),
            false => Err("a claim was not confirmed".into()),
        }
    }
}

impl<S> Client for Cycler<S>
where
    S: Service<HolderCall, Response = Reply, Error = ClientError> + Clone,
{
    fn cycle(&mut self) -> Answer<'_> {
        Box::pin(self.acquire())
    }

    fn settle(&mut self) -> Answer<'_> {
        Box::pin(async move {
            match self.held.take() {
                Some(grant_id) => self.sync(report(grant_id, 1)).await,
                None => Ok(()),
            }
        })
    }
}

fn report(grant_id: String, released: u64) -> GrantReport {
    GrantReport {
        grant_id,
        claimed: 1,
        released,
    }
}
