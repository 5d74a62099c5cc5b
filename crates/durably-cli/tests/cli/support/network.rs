//! A network that can be cut: a TCP proxy between two servers.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    /// Connections end as soon as they are made.
    Refusing,
    /// Nothing arrives, and nobody is told.
    Silent,
}

#[derive(Clone, Copy)]
struct State {
    target: Option<SocketAddr>,
    mode: Mode,
    /// How often all connections were cut.
    cuts: u64,
}

pub(crate) struct Network {
    /// What to connect to.
    pub(crate) address: SocketAddr,
    state: watch::Sender<State>,
}

impl Network {
    pub(crate) async fn start() -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, watched) = watch::channel(State {
            target: None,
            mode: Mode::Open,
            cuts: 0,
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(carry(stream, watched.clone()));
            }
        });
        Network { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where new connections lead.
    pub(crate) fn lead_to(&self, target: SocketAddr) {
        self.state.send_modify(|state| state.target = Some(target));
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Ends all connections, and new ones as well.
    pub(crate) fn refuse(&self) {
        self.state.send_modify(|state| state.mode = Mode::Refusing);
        self.cut();
    }

    /// Holds back everything that is sent.
    pub(crate) fn silence(&self) {
        self.state.send_modify(|state| state.mode = Mode::Silent);
    }

    /// Works again; what was held back arrives.
    pub(crate) fn mend(&self) {
        self.state.send_modify(|state| state.mode = Mode::Open);
    }
}

async fn carry(client: TcpStream, mut state: watch::Receiver<State>) {
    let now = *state.borrow_and_update();
    if now.mode == Mode::Refusing {
        return;
    }
    let Some(target) = now.target else { return };
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, state.clone()) => {}
        () = pump(from_server, to_client, state.clone()) => {}
        _ = state.wait_for(|state| state.cuts != now.cuts) => {}
    }
}

/// Carries what comes one way until it ends.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if state
            .wait_for(|state| state.mode == Mode::Open)
            .await
            .is_err()
        {
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
