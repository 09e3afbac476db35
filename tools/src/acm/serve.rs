//! `doorbell acm serve`: runs the service until it is interrupted.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use doorbell::oob::JobKey;
use doorbell_acm::config::{OPTIONS_FILE, Options, Warnings, read_file, read_options};
use doorbell_acm::serve::{SocketPaths, Tcp, inherited};
use doorbell_acm::service::{Service, Settings};
use doorbell_fabric::error::Exit;
use doorbell_fabric::signals::{self, ENDS};
use serde::Serialize;
use tokio::sync::watch;

use super::args::ServeArgs;
use super::log::Log;
use crate::console;
use crate::error::ToolError;

/// How often it is checked whether the output still has a reader.
const LOOK: Duration = Duration::from_millis(200);

/// The addresses that the service listens on.
#[derive(Debug, Serialize)]
struct Ready {
    schema: &'static str,
    version: &'static str,
    process: u32,
    socket: PathBuf,
    watch: PathBuf,
    tcp: Option<String>,
    /// Whether messages of other services have to be authenticated.
    authenticated: bool,
    /// Warnings about the configuration.
    warnings: Vec<String>,
}

/// Runs `doorbell acm serve`.
pub(super) fn serve(args: &ServeArgs) -> Result<ExitCode, ToolError> {
    let mut settings = Settings::at(places(args.socket.as_deref()));
    if let Some(folder) = &args.config {
        is_folder(folder)?;
        settings.folder.clone_from(folder);
    }
    settings.interfaces.clone_from(&args.nics);
    settings.tcp = args.tcp.map(|port| Tcp {
        port,
        open: args.open,
    });
    settings.key = key(args, &settings.folder)?;
    let variable = |name| std::env::var(name).ok();
    let given = inherited(
        variable("LISTEN_FDS").as_deref(),
        variable("LISTEN_PID").as_deref(),
    );
    let interrupted = Arc::new(AtomicBool::new(false));
    signals::set_flag_on(&ENDS, &interrupted).map_err(|source| ToolError::System {
        what: "wait for signals",
        source,
    })?;
    let service = Service::open(settings.clone(), given.map_err(acm)?).map_err(acm)?;
    let log = Log::of(service.log_file());
    let warnings: Vec<String> = service.warnings().map(str::to_owned).collect();
    for warning in &warnings {
        log.say(warning);
    }
    let ready = Ready {
        schema: "doorbell.acm-serve/1",
        version: env!("CARGO_PKG_VERSION"),
        process: std::process::id(),
        socket: settings.places.socket.clone(),
        watch: settings.watch.clone(),
        tcp: service.tcp_address().map(|address| address.to_string()),
        authenticated: settings.key.is_some(),
        warnings,
    };
    let begun = begins(&ready, args.json);
    let (stop, stopped) = watch::channel(false);
    let unsaid = Arc::clone(&interrupted);
    let until = args
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let waiting = std::thread::Builder::new()
        .name("doorbell-signals".to_owned())
        .spawn(move || wait(&interrupted, until, &stop))
        .map_err(|source| ToolError::System {
            what: "start a thread that waits for signals",
            source,
        })?;
    let service = service.telling(Box::new(move |line| log.say(line)));
    let (said, is_said) = mpsc::channel();
    let service = service.when_ready(move || {
        let printed = console::print(&begun);
        unsaid.fetch_or(printed.is_err(), Ordering::Relaxed);
        let _ = said.send(printed);
        tell_system();
    });
    let ended = service.run(stopped).map_err(acm);
    // It ends once the service has ended.
    let _ = waiting.join();
    ended?;
    is_said.try_recv().unwrap_or(Ok(()))?;
    Ok(Exit::Done.into())
}

/// Waits until a signal comes, the time is over, or the output has no reader.
fn wait(interrupted: &AtomicBool, until: Option<Instant>, stop: &watch::Sender<bool>) {
    while !interrupted.load(Ordering::Relaxed)
        && until.is_none_or(|until| Instant::now() < until)
        && !console::is_closed()
        && !stop.is_closed()
    {
        let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
        std::thread::sleep(LOOK.min(left));
    }
    let _ = stop.send(true);
}

/// Notifies systemd that the service is ready (sd_notify(3)), if it expects that.
fn tell_system() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let told = UnixDatagram::unbound().and_then(|socket| {
        let address = match path.as_encoded_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&path),
        };
        socket.send_to_addr(b"READY=1", &address?)
    });
    if let Err(error) = told {
        console::say(&format!(
            "doorbell: cannot notify systemd that the service is ready ({error}); systemd will stop it if its unit has Type=notify"
        ));
    }
}

/// Checks that a folder given on the command line exists, since a mistyped one would mean no configuration.
fn is_folder(folder: &Path) -> Result<(), ToolError> {
    let why = match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "it is not a folder".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(ToolError::Usage(format!(
        "`--config {}` is not a folder of a configuration ({why}); create it, or omit --config for /etc/rdma",
        folder.display()
    )))
}

/// Returns the paths of a service; with a socket of its own, all files are beside it.
fn places(socket: Option<&Path>) -> SocketPaths {
    let Some(socket) = socket else {
        return SocketPaths::default();
    };
    let beside = |end: &str| {
        let mut name = socket.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    SocketPaths {
        socket: socket.to_owned(),
        socket_alias: beside(".alias"),
        port: beside(".port"),
        port_alias: beside(".port.alias"),
    }
}

/// Returns the job's key: from the command line, else from the configuration.
fn key(args: &ServeArgs, folder: &Path) -> Result<Option<[u8; 32]>, ToolError> {
    let file = folder.join(OPTIONS_FILE);
    let configured = || {
        let text = read_file(&file).ok().flatten()?;
        let options: Options = read_options(&text, &file, &mut Warnings::default());
        options.doorbell_key_file
    };
    let file = args.key_file.clone().or_else(configured);
    Ok(file
        .map(|file| JobKey::read(&file))
        .transpose()?
        .map(|key| *key.expose()))
}

fn begins(ready: &Ready, json: bool) -> String {
    if json {
        // Only strings and numbers: serialising into memory cannot fail.
        return serde_json::to_string(ready).expect("a report is plain data") + "\n";
    }
    let tcp = ready.tcp.as_ref().map(|tcp| format!(" and {tcp}"));
    format!(
        "serving at {}{} (process {}); `doorbell acm watch --socket {}` shows its state\n",
        ready.socket.display(),
        tcp.unwrap_or_default(),
        ready.process,
        ready.watch.display()
    )
}

fn acm(error: impl Into<doorbell_acm::service::ServiceError>) -> ToolError {
    ToolError::AcmService(error.into())
}
