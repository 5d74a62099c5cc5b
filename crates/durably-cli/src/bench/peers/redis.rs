//! Redis: a fair semaphore in Lua, every write flushed before its answer (`appendfsync always`).
//!
//! Who waits has a ticket, and a permit goes to the lowest tickets only; permits and tickets end by
//! themselves when their owner falls silent.

use std::path::Path;
use std::process::Stdio;

use durably::error::BoxError;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::{Answer, Client, Clients, LIMIT, Started, find, until_up};

/// Keys: permits by their end, waiting by ticket, the last ticket, waiting by their end. Arguments:
/// id, limit, time to live in ms.
const ACQUIRE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now)) do
    redis.call('ZREM', KEYS[2], gone)
    redis.call('ZREM', KEYS[4], gone)
end
local free = tonumber(ARGV[2]) - redis.call('ZCARD', KEYS[1])
local place = redis.call('ZRANK', KEYS[2], ARGV[1])
local ahead = place or redis.call('ZCARD', KEYS[2])
if ahead < free then
    if place then
        redis.call('ZREM', KEYS[2], ARGV[1])
        redis.call('ZREM', KEYS[4], ARGV[1])
    end
    redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
    return 1
end
if not place then
    redis.call('ZADD', KEYS[2], redis.call('INCR', KEYS[3]), ARGV[1])
end
redis.call('ZADD', KEYS[4], now + ARGV[3], ARGV[1])
return 0";

const RELEASE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";

const KEYS: [&str; 4] = ["held", "waiting", "ticket", "seen"];
const TIME_TO_LIVE_MS: &str = "30000";

pub(super) struct Server(Child);

impl Server {
    pub(super) async fn stop(mut self) -> Result<(), BoxError> {
        Ok(self.0.kill().await?)
    }
}

pub(super) async fn start(folder: &Path) -> Result<Started<Server>, BoxError> {
    let Some(program) = find("redis-server", &[]) else {
        let why = "redis-server is not installed (apt-get install redis-server)";
        return Ok(Started::Skipped(why.to_owned()));
    };
    std::fs::create_dir(folder)?;
    // The paths of sockets must be short, and those of folders need not be.
    let sockets = tempfile::tempdir()?;
    let socket = sockets.path().join("redis");
    let server = Command::new(program)
        .args(["--port", "0", "--save", "", "--appendonly", "yes"])
        .args([
            "--appendfsync",
            "always",
            "--auto-aof-rewrite-percentage",
            "0",
        ])
        .args(["--daemonize", "no", "--maxclients", "200", "--dir"])
        .arg(folder)
        .arg("--unixsocket")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut first = until_up(|| Connection::open(&socket)).await?;
    let acquire = first.load(ACQUIRE).await?;
    let release = first.load(RELEASE).await?;
    let mut clients: Clients = Vec::new();
    for number in 0..LIMIT {
        clients.push(Box::new(RedisClient {
            connection: Connection::open(&socket).await?,
            number,
            cycle: 0,
            acquire: acquire.clone(),
            release: release.clone(),
        }));
    }
    Ok(Started::Running(Server(server), clients))
}

struct RedisClient {
    connection: Connection,
    number: usize,
    cycle: u64,
    acquire: String,
    release: String,
}

impl RedisClient {
    async fn acquire_and_release(&mut self) -> Result<(), BoxError> {
        self.cycle += 1;
        let id = format!("client-{:02}-{}", self.number, self.cycle);
        let limit = LIMIT.to_string();
        let mut acquire = vec!["EVALSHA", &self.acquire, "4"];
        acquire.extend(KEYS);
        acquire.extend([id.as_str(), &limit, TIME_TO_LIVE_MS]);
        while self.connection.ask(&acquire).await? != "1" {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let release = ["EVALSHA", &self.release, "1", KEYS[0], &id];
        match self.connection.ask(&release).await?.as_str() {
            "1" => Ok(()),
            other => Err(format!("Redis released {other} permits").into()),
        }
    }
}

impl Client for RedisClient {
    fn cycle(&mut self) -> Answer<'_> {
        Box::pin(self.acquire_and_release())
    }
}

/// A connection that speaks as much of RESP as is needed here.
struct Connection(BufStream<UnixStream>);

impl Connection {
    async fn open(socket: &Path) -> Result<Connection, BoxError> {
        let mut connection = Connection(BufStream::new(UnixStream::connect(socket).await?));
        connection.ask(&["PING"]).await?;
        Ok(connection)
    }

    async fn load(&mut self, script: &str) -> Result<String, BoxError> {
        self.ask(&["SCRIPT", "LOAD", script]).await
    }

    /// Sends a command and returns its answer: a number or a text.
    async fn ask(&mut self, command: &[&str]) -> Result<String, BoxError> {
        let mut text = format!("*{}\r\n", command.len());
        for word in command {
            text += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.write_all(text.as_bytes()).await?;
        self.0.flush().await?;
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        let said = line.trim_end();
        match said.split_at_checked(1) {
            Some((":" | "+", value)) => Ok(value.to_owned()),
            Some(("$", length)) => {
                let mut bytes = vec![0; length.parse::<usize>()? + 2];
                self.0.read_exact(&mut bytes).await?;
                bytes.truncate(bytes.len() - 2);
                Ok(String::from_utf8(bytes)?)
            }
            _ => Err(format!("Redis answered {said:?}").into()),
        }
    }
}
