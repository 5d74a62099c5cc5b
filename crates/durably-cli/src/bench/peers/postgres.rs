//! PostgreSQL: one row for each permit, taken with `FOR UPDATE SKIP LOCKED`, each statement a
//! transaction of its own that is on disk before its answer.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use durably::error::BoxError;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio_postgres::{NoTls, Statement};

use super::{Answer, Client, Clients, LIMIT, Started, find, until_up};

const SCHEMA: &str = "CREATE TABLE slots (
    id integer PRIMARY KEY, holder text, expires_at timestamptz NOT NULL DEFAULT now()
)";
const FILL: &str = "INSERT INTO slots (id) SELECT generate_series(1, $1::integer)";
const ACQUIRE: &str = "UPDATE slots SET holder = $1, expires_at = now() + interval '30 s'
    WHERE id = (SELECT id FROM slots WHERE holder IS NULL OR expires_at < now()
                ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id";
const RELEASE: &str = "UPDATE slots SET holder = NULL WHERE id = $1 AND holder = $2";

/// Whom the server runs as: it refuses to be root.
#[derive(Clone, Copy)]
struct User {
    id: u32,
    group: u32,
}

pub(super) struct Server {
    process: Child,
    data: PathBuf,
    control: PathBuf,
    user: Option<User>,
    _sockets: TempDir,
}

impl Server {
    pub(super) async fn stop(mut self) -> Result<(), BoxError> {
        let stopped = command(&self.control, self.user)
            .args(["stop", "-m", "fast", "-D"])
            .arg(&self.data)
            .stdout(Stdio::null())
            .status()
            .await?;
        if !stopped.success() {
            self.process.kill().await?;
        }
        self.process.wait().await?;
        Ok(())
    }
}

pub(super) async fn start(folder: &Path) -> Result<Started<Server>, BoxError> {
    let folders = installed();
    let (Some(initdb), Some(postgres), Some(control)) = (
        find("initdb", &folders),
        find("postgres", &folders),
        find("pg_ctl", &folders),
    ) else {
        let why = "PostgreSQL is not installed (apt-get install postgresql)";
        return Ok(Started::Skipped(why.to_owned()));
    };
    std::fs::create_dir(folder)?;
    let sockets = tempfile::tempdir()?;
    let user = match runs_as_root(folder)? {
        false => None,
        true => match postgres_user() {
            Some(user) => {
                // The folder of this run is closed to others, whom it must let through now.
                for parent in folder.ancestors().skip(1).take(2) {
                    std::fs::set_permissions(parent, PermissionsExt::from_mode(0o711))?;
                }
                for path in [folder, sockets.path()] {
                    chown(path, Some(user.id), Some(user.group))?;
                }
                Some(user)
            }
            None => {
                let why = "PostgreSQL does not run as root, and there is no user postgres";
                return Ok(Started::Skipped(why.to_owned()));
            }
        },
    };
    let data = folder.join("data");
    let made = command(&initdb, user)
        .args(["--auth=trust", "--username=postgres", "--no-sync", "-D"])
        .arg(&data)
        .stdout(Stdio::null())
        .status()
        .await?;
    if !made.success() {
        return Ok(Started::Skipped("initdb failed: see above".to_owned()));
    }
    let process = command(&postgres, user)
        .args([
            "-c",
            "listen_addresses=",
            "-c",
            "fsync=on",
            "-c",
            "synchronous_commit=on",
        ])
        .args([
            "-c",
            "max_connections=100",
            "-c",
            "log_min_messages=fatal",
            "-k",
        ])
        .arg(sockets.path())
        .arg("-D")
        .arg(&data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let first = until_up(|| connect(sockets.path())).await?;
    first.execute(SCHEMA, &[]).await?;
    first.execute(FILL, &[&i32::try_from(LIMIT)?]).await?;
    let mut clients: Clients = Vec::new();
    for number in 0..LIMIT {
        let client = connect(sockets.path()).await?;
        clients.push(Box::new(PostgresClient {
            acquire: client.prepare(ACQUIRE).await?,
            release: client.prepare(RELEASE).await?,
            client,
            holder: format!("client-{number:02}"),
        }));
    }
    let server = Server {
        process,
        data,
        control,
        user,
        _sockets: sockets,
    };
    Ok(Started::Running(server, clients))
}

/// Where Debian keeps the programs of its versions, newest first.
fn installed() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let mut folders: Vec<PathBuf> = versions
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .collect();
    folders.sort();
    folders.reverse();
    folders
}

/// Whether what this process makes belongs to root.
fn runs_as_root(made: &Path) -> Result<bool, BoxError> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::metadata(made)?.uid() == 0)
}

fn postgres_user() -> Option<User> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2);
    Some(User {
        id: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
    })
}

fn command(program: &Path, user: Option<User>) -> Command {
    let mut command = Command::new(program);
    // It may not be let into the folder where this program was started.
    command.current_dir("/");
    if let Some(user) = user {
        command.uid(user.id).gid(user.group);
    }
    command
}

async fn connect(sockets: &Path) -> Result<tokio_postgres::Client, BoxError> {
    let (client, connection) = tokio_postgres::Config::new()
        .host_path(sockets)
        .user("postgres")
        .dbname("postgres")
        .connect(NoTls)
        .await?;
    // It ends with its client.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}

struct PostgresClient {
    client: tokio_postgres::Client,
    acquire: Statement,
    release: Statement,
    holder: String,
}

impl PostgresClient {
    async fn acquire_and_release(&mut self) -> Result<(), BoxError> {
        let slot: i32 = loop {
            // All slots may be locked by others for a moment.
            if let Some(row) = self
                .client
                .query_opt(&self.acquire, &[&self.holder])
                .await?
            {
                break row.try_get(0)?;
            }
        };
        let released = self
            .client
            .execute(&self.release, &[&slot, &self.holder])
            .await?;
        match released {
            1 => Ok(()),
            other => Err(format!("Postgres released {other} permits").into()),
        }
    }
}

impl Client for PostgresClient {
    fn cycle(&mut self) -> Answer<'_> {
        Box::pin(self.acquire_and_release())
    }
}
