//! `doorbell acm watch`: shows the state of a service.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_acm::serve::SOCKET_MAX;
use doorbell_acm::service::Settings;
use doorbell_bench::report::printable;
use doorbell_fabric::error::Exit;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::Value;

use super::args::WatchArgs;
use crate::console;
use crate::error::ToolError;

/// The interval between two states.
const EACH: Duration = Duration::from_secs(1);
/// Maximum bytes of a state.
const LONGEST: u64 = 64 << 20;
/// Maximum number of destinations on a screen.
const ROWS: usize = 40;

/// Runs `doorbell acm watch`.
pub(super) fn watch(args: &WatchArgs) -> Result<ExitCode, ToolError> {
    let socket = socket(args.socket.as_deref());
    let limit = Duration::from_secs_f64(args.timeout);
    let stream = connect(&socket, limit)?;
    let mut lines = BufReader::new(Timed {
        stream,
        limit,
        until: Instant::now() + limit,
    });
    let clear = !args.once && !args.json && io::stdout().is_terminal();
    loop {
        let line = state(&mut lines, &socket)?;
        let text = if args.json {
            line
        } else {
            screen(&parse(&line, &socket)?, clear)
        };
        console::print(&text)?;
        if args.once {
            return Ok(Exit::Done.into());
        }
        std::thread::sleep(EACH);
        if console::is_closed() {
            return Ok(Exit::Done.into());
        }
    }
}

/// Returns the status socket; the service's own socket may be given too.
fn socket(named: Option<&Path>) -> PathBuf {
    let Some(named) = named else {
        return Settings::usual().watch;
    };
    if named.extension().is_some_and(|end| end == "watch") {
        return named.to_owned();
    }
    let mut name = named.as_os_str().to_owned();
    name.push(".watch");
    name.into()
}

/// A connection that is read until a deadline.
struct Timed {
    stream: UnixStream,
    limit: Duration,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }

    /// Requests a state, and starts the time limit for it.
    fn ask(&mut self) -> io::Result<()> {
        self.until = Instant::now() + self.limit;
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write_all(b"state\n")
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

/// The send timeout bounds the wait for a service whose backlog is full (unix(7)).
fn open(socket: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let stream = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&stream, Timeout::Send, Some(limit))?;
    rustix::net::connect(&stream, &address)?;
    Ok(stream.into())
}

fn connect(socket: &Path, limit: Duration) -> Result<UnixStream, ToolError> {
    open(socket, limit).map_err(|source| {
        if source.kind() == io::ErrorKind::WouldBlock {
            return late(socket, limit);
        }
        let length = socket.as_os_str().len();
        if length > SOCKET_MAX {
            return ToolError::Usage(format!(
                "`{}` has {length} bytes, but the path of a Unix socket has at most {SOCKET_MAX}: give another one",
                socket.display()
            ));
        }
        ToolError::AcmWatch(format!(
            "no service listens at {}: {source}; start one with `doorbell acm serve`, or give its socket with --socket",
            socket.display()
        ))
    })
}

fn late(socket: &Path, limit: Duration) -> ToolError {
    ToolError::Stopped(format!(
        "the service at {} did not answer within {:.1} s: check its output, or allow more time (--timeout)",
        socket.display(),
        limit.as_secs_f64()
    ))
}

fn state(lines: &mut BufReader<Timed>, socket: &Path) -> Result<String, ToolError> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, WouldBlock};
    let mut line = String::new();
    let asked = lines.get_mut().ask();
    let read = asked.and_then(|()| lines.by_ref().take(LONGEST).read_line(&mut line));
    match read {
        Ok(1..) if line.ends_with('\n') => Ok(line),
        Err(error) if matches!(error.kind(), TimedOut | WouldBlock) => {
            Err(late(socket, lines.get_ref().limit))
        }
        Err(error) if !matches!(error.kind(), BrokenPipe | ConnectionReset) => {
            Err(ToolError::AcmWatch(format!(
                "the service at {} does not answer: {error}; check its output",
                socket.display()
            )))
        }
        _ => Err(ToolError::AcmWatch(format!(
            "the service at {} has ended; restart it",
            socket.display()
        ))),
    }
}

fn parse(line: &str, socket: &Path) -> Result<Value, ToolError> {
    let value: Option<Value> = serde_json::from_str(line).ok();
    value
        .filter(|value| value["schema"] == "doorbell.acm-watch/1")
        .ok_or_else(|| {
            ToolError::AcmWatch(format!(
                "{} does not return the state of a service: it is another program, or another version",
                socket.display()
            ))
        })
}

/// Returns a word of the state, without characters that a terminal would interpret.
fn word(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(text),
        other => other.to_string(),
    }
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn screen(state: &Value, clear: bool) -> String {
    let mut text = if clear {
        "\x1b[H\x1b[2J".to_owned()
    } else {
        String::new()
    };
    let _ = writeln!(
        text,
        "process {}, {} clients, {} questions wait, {} KiB",
        word(&state["process"]),
        word(&state["clients_now"]),
        word(&state["waiting"]),
        state["memory_bytes"].as_u64().unwrap_or(0) / 1024
    );
    for (name, of) in [
        ("counted", "counters"),
        ("messages", "messages"),
        ("carried", "carrier"),
        ("clients", "clients"),
    ] {
        let members = state[of].as_object().into_iter().flatten();
        let some: Vec<String> = members
            .filter(|(_, count)| count.as_u64() != Some(0))
            .map(|(name, count)| format!("{} {count}", printable(&name.replace('_', " "))))
            .collect();
        let kind = Some(&state["carrier_kind"]).filter(|kind| of == "carrier" && !kind.is_null());
        let kind = kind.map_or_else(String::new, |kind| format!(" over {}", word(kind)));
        if !some.is_empty() {
            let _ = writeln!(text, "{name}{kind}: {}", some.join(", "));
        }
    }
    endpoints(&mut text, rows(&state["endpoints"]));
    known(&mut text, state);
    for one in rows(&state["warnings"])
        .iter()
        .chain(std::iter::once(&state["trouble"]))
    {
        if !one.is_null() {
            let _ = writeln!(text, "trouble: {}", word(one));
        }
    }
    events(&mut text, rows(&state["events"]));
    text
}

fn endpoints(text: &mut String, all: &[Value]) {
    for one in all {
        let addresses: Vec<String> = rows(&one["addresses"]).iter().map(word).collect();
        let _ = write!(
            text,
            "\n{} ({}, MTU {}, {} Gb/s): {}",
            word(&one["device"]),
            word(&one["link"]),
            word(&one["mtu"]),
            one["megabits"].as_f64().unwrap_or(0.0) / 1e3,
            addresses.join(" ")
        );
        if !one["queue_pair"].is_null() {
            let _ = write!(text, "\n  queue pair: {}", word(&one["queue_pair"]));
        }
        if !one["unserved"].is_null() {
            let _ = write!(text, "\n  not served: {}", word(&one["unserved"]));
        }
    }
    text.push('\n');
}

fn known(text: &mut String, state: &Value) {
    let all = rows(&state["known"]);
    if all.is_empty() {
        text.push_str("\nno other hosts are known yet\n");
        return;
    }
    let seconds = |value: &Value| {
        value
            .as_f64()
            .map_or_else(|| "-".to_owned(), |time| format!("{time:.1} s"))
    };
    let table: Vec<[String; 7]> = all
        .iter()
        .take(ROWS)
        .map(|one| {
            let state = match &one["refused"] {
                Value::Null => word(&one["state"]),
                why => format!("refused: {}", word(why)),
            };
            [
                word(&one["destination"]),
                state,
                word(&one["gid"]),
                word(&one["mtu"]),
                word(&one["origin"]),
                seconds(&one["confirmed_s"]),
                seconds(&one["expires_s"]),
            ]
        })
        .collect();
    let heads = ["destination", "state", "gid", "mtu", "by", "heard", "expires"].map(str::to_owned);
    let width = |column: usize| {
        let cells = table.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(heads[column].len())
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    text.push('\n');
    for row in std::iter::once(&heads).chain(&table) {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    let more = all.len().saturating_sub(ROWS) as u64 + state["more_known"].as_u64().unwrap_or(0);
    if more > 0 {
        let _ = writeln!(text, "and {more} more");
    }
}

fn events(text: &mut String, all: &[Value]) {
    let first = all.len().saturating_sub(10);
    for one in &all[first..] {
        let _ = writeln!(
            text,
            "{:8.1} s ago  {}",
            one["ago_s"].as_f64().unwrap_or(0.0),
            word(&one["what"])
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_socket_stands_for_its_companion() {
        assert_eq!(socket(None), Path::new("/run/ibacm-unix.sock.watch"));
        assert_eq!(
            socket(Some("/tmp/acm.sock".as_ref())),
            Path::new("/tmp/acm.sock.watch")
        );
        assert_eq!(
            socket(Some("/tmp/acm.sock.watch".as_ref())),
            Path::new("/tmp/acm.sock.watch")
        );
    }

    #[test]
    fn a_screen_shows_what_is_not_zero_and_no_control_characters() {
        let state = serde_json::json!({
            "process": 7, "clients_now": 1, "waiting": 0, "memory_bytes": 2048,
            "counters": {"resolves": 3, "errors": 0}, "messages": {}, "carrier": {}, "clients": {},
            "endpoints": [{"device": "eth0", "link": "ethernet", "mtu": 1024, "megabits": 10000, "addresses": ["10.0.0.1"],
                "unserved": null}],
            "known": [{"destination": "node\u{1b}[2J", "state": "ready", "gid": "::1", "mtu": 1024, "origin": "multicast",
                "confirmed_s": 0.5, "expires_s": null, "refused": null}],
            "more_known": 2, "warnings": ["opts:3: no"], "trouble": null, "events": [{"ago_s": 1.0, "what": "eth0 came"}],
        });
        let text = screen(&state, false);
        assert!(!text.contains('\u{1b}'), "{text}");
        for wanted in [
            "counted: resolves 3\n",
            "eth0 (ethernet, MTU 1024, 10 Gb/s): 10.0.0.1",
            "0.5 s",
            "and 2 more",
            "opts:3: no",
            "eth0 came",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }
}
