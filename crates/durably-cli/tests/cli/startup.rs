//! What keeps a server from starting has an exit code of its own and a message with the remedy.

use std::fs;
use std::net::TcpListener;

use serde_json::json;

use crate::support::endpoint::Endpoint;
use crate::support::{Setup, durably, files};

/// Nothing listens there, and nothing needs to.
const NOWHERE: &str = "http://127.0.0.1:1/run";

#[track_caller]
fn check((code, text): (i32, String), expected: i32, named: &str) {
    assert_eq!(code, expected, "{text}");
    assert!(text.contains(named), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_end_with_2_and_are_named() {
    for (config, named) in [
        ("rond_wait = \"1s\"", "rond_wait"),
        ("[jobs]\nlimit = 1", "jobs"),
        ("default_limit = -1", "default_limit"),
        ("default_limit = 1.5", "default_limit"),
        ("default_limit = 99999999999999999999999", "default_limit"),
        ("round_wait = 5", "round_wait"),
        ("round_wait = \"soon\"", "round_wait"),
        ("round_wait = 50", "\"250ms\""),
        ("listen = \"nowhere\"", "listen"),
        ("listen = 7070", "127.0.0.1:7070"),
        ("holders = \"10.0.0.5:7070\"", "holders"),
        ("holders = \"localhost:7070\"", "http://10.0.0.5:7070"),
        ("holders = \"ftp://10.0.0.5\"", "http://10.0.0.5:7070"),
        ("holders = \"http://10.0.0.5:7070/v1\"", "without a path"),
        ("holders = \"http://me:pw@10.0.0.5\"", "token"),
        ("holders_token = \"secret\"", "--holders"),
        (
            "holders = \"http://10.0.0.5\"\nholders_token = \"two words\"",
            "holders_token",
        ),
        ("token = \"\"", "token"),
        ("max_requests = 0", "max_requests"),
        ("job_endpoint = \"gopher://x\"", "job_endpoint"),
        ("= 1", "durably.toml"),
        ("alarm_min_delay = \"1ms\"", "alarm_min_delay"),
        ("threads = 0", "threads"),
        ("job_attempts = 0", "attempts"),
        ("shards_per_account = 0", "shards_per_account"),
    ] {
        // Flags would come first.
        let setup = Setup::bare().variable("DURABLY_JOB_ENDPOINT", NOWHERE);
        let setup = match config.starts_with("job_endpoint") {
            true => Setup::bare(),
            false => setup,
        };
        let setup = setup.variable("DURABLY_LISTEN", "127.0.0.1:0");
        let setup = match config.starts_with("listen") {
            true => Setup::bare().variable("DURABLY_JOB_ENDPOINT", NOWHERE),
            false => setup,
        };
        check(setup.config(config).refused().await, 2, named);
    }
    for (flag, named) in [
        ("--default-limit=-1", "--default-limit"),
        ("--round-wait=0s", "--round-wait"),
        ("--retention=100000d", "--retention"),
        ("--listen=localhost", "--listen"),
        ("--listen=:7070", "127.0.0.1:7070"),
        ("--log-format=xml", "--log-format"),
        ("--unknown-flag", "--unknown-flag"),
        ("--config=/nowhere/durably.toml", "/nowhere/durably.toml"),
    ] {
        // None of them given already.
        let setup = Setup::bare().args(["--job-endpoint", NOWHERE, flag]);
        check(setup.refused().await, 2, named);
    }
    // A value is blamed on where it came from.
    let setup = || Setup::bare().variable("DURABLY_DEFAULT_LIMIT", "-1");
    check(setup().refused().await, 2, "DURABLY_DEFAULT_LIMIT");
    let (_, text) = setup().args(["--default-limit=-2"]).refused().await;
    assert!(!text.contains("DURABLY_DEFAULT_LIMIT"), "{text}");
    let itself = Setup::bare().args(["--job-endpoint", NOWHERE, "--listen=127.0.0.1:7071"]);
    let itself = itself.args(["--holders=http://127.0.0.1:7071/"]);
    check(itself.refused().await, 2, "another server");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_job_endpoint_no_job_is_taken_and_none_is_spoilt() {
    let first = Setup::new(NOWHERE);
    let folder = first.data_dir().to_string_lossy().into_owned();
    let without = Setup::bare().args(["--listen=127.0.0.1:0", "--data-dir", &folder]);
    let server = without.start().await;
    let job = json!({"account": "acme", "id": "job-1"});
    let (status, refused) = server.post("jobs", &job).await;
    assert_eq!(status, 501);
    assert_eq!(refused["error"]["code"], "no_job_endpoint");
    assert_eq!(server.get("accounts/acme/usage").await.0, 200);
    server.kill().await;
    // Once there are jobs, they need one.
    let server = first.start().await;
    assert_eq!(server.post("jobs", &job).await.0, 202);
    server.kill().await;
    check(without.refused().await, 2, "--job-endpoint");
    first.start().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_override_the_environment_which_overrides_the_file() {
    let limit = |setup: Setup| async move {
        let server = setup.start().await;
        let (_, usage) = server.get("accounts/acme/usage").await;
        usage["limit"].as_u64().unwrap()
    };
    let file = || Setup::new(NOWHERE).config("default_limit = 3");
    assert_eq!(limit(file()).await, 3);
    let variable = || file().variable("DURABLY_DEFAULT_LIMIT", "4");
    assert_eq!(limit(variable()).await, 4);
    assert_eq!(limit(variable().args(["--default-limit=5"])).await, 5);
    // One that an orchestrator may set by itself.
    assert_eq!(
        limit(file().variable("DURABLY_PORT", "tcp://10.0.0.1:7070")).await,
        3
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_ends_with_3_and_touches_no_data() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let setup = Setup::bare().args(["--job-endpoint", NOWHERE, "--listen", &address]);
    check(setup.refused().await, 3, "--listen");
    assert!(!setup.data_dir().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_in_use_ends_with_4() {
    let setup = Setup::new(NOWHERE);
    let server = setup.start().await;
    check(setup.refused().await, 4, "--data-dir");
    server.kill().await;
    setup.start().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_folder_ends_with_5() {
    let endpoint = Endpoint::start().await;
    let setup = Setup::new(endpoint.url());
    let server = setup.start().await;
    server
        .post("jobs", &json!({"account": "acme", "id": "1"}))
        .await;
    server.until_state("acme", "1", "completed").await;
    server.signal("TERM");
    assert!(server.ended().await.success());
    for (path, bytes) in files(&setup.data_dir()) {
        fs::write(path, vec![0xa5; bytes.len()]).unwrap();
    }
    check(setup.refused().await, 5, "restore");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_none_ends_with_7() {
    let setup = Setup::new(NOWHERE);
    fs::write(setup.data_dir(), "a file").unwrap();
    check(setup.refused().await, 7, "--data-dir");
}

#[tokio::test(flavor = "multi_thread")]
async fn help_tells_settings_with_their_variables_and_the_exit_codes() {
    let output = durably().args(["serve", "--help"]).output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for part in [
        "--job-endpoint",
        "DURABLY_JOB_ENDPOINT",
        "Exit codes:",
        "./durably-data",
    ] {
        assert!(text.contains(part), "{text}");
    }
}
