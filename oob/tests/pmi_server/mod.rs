//! A PMI server for tests: both protocols, any number of ranks, each on a socket pair; and one that
//! misbehaves.

#![allow(dead_code)] // no user of this module uses all of it

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier, Mutex};
use std::thread::JoinHandle;

/// Which protocol is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    One,
    Two,
}

/// What one rank's side of the server has seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) finalized: bool,
    pub(crate) aborted: Option<String>,
    pub(crate) longest: usize,
}

/// A well-behaved server: one socket for each rank, and what it saw when all have ended.
pub(crate) fn serve(speaks: Speaks, size: usize, vallen: usize) -> (Vec<OwnedFd>, Vec<JoinHandle<Seen>>) {
    let values = Arc::new(Mutex::new(BTreeMap::new()));
    let barrier = Arc::new(Barrier::new(size));
    let side = |rank: usize| {
        let (client, server) = UnixStream::pair().unwrap();
        let mut side = Side {
            stream: server,
            speaks,
            framed: false,
            rank,
            size,
            vallen,
            values: Arc::clone(&values),
            barrier: Arc::clone(&barrier),
            seen: Seen::default(),
        };
        let thread = std::thread::spawn(move || {
            while side.step() {}
            side.seen
        });
        (OwnedFd::from(client), thread)
    };
    (0..size).map(side).unzip()
}

/// A server that receives `answers.len()` requests, sends these bytes as they are, and then only waits for
/// the other side to close; with `closes`, it closes first.
pub(crate) fn script(answers: &[&[u8]], closes: bool) -> (OwnedFd, JoinHandle<()>) {
    let (client, mut server) = UnixStream::pair().unwrap();
    let answers: Vec<Vec<u8>> = answers.iter().map(|answer| answer.to_vec()).collect();
    let thread = std::thread::spawn(move || {
        let mut heard = [0; 8192];
        for answer in answers {
            if server.read(&mut heard).unwrap_or(0) == 0 {
                return;
            }
            // In two pieces, which may come apart.
            let (first, second) = answer.split_at(answer.len() / 2);
            let _ = server.write_all(first);
            let _ = server.write_all(second);
        }
        if closes {
            let _ = server.shutdown(Shutdown::Both);
        }
        while server.read(&mut heard).unwrap_or(0) > 0 {}
    });
    (client.into(), thread)
}

struct Side {
    stream: UnixStream,
    speaks: Speaks,
    framed: bool,
    rank: usize,
    size: usize,
    vallen: usize,
    values: Arc<Mutex<BTreeMap<String, String>>>,
    barrier: Arc<Barrier>,
    seen: Seen,
}

impl Side {
    /// Answers one request; `false` when there is no other.
    fn step(&mut self) -> bool {
        let Some(text) = self.receive() else { return false };
        self.seen.longest = self.seen.longest.max(text.len());
        let separator = if text.contains(';') { ';' } else { ' ' };
        let words: BTreeMap<&str, &str> = text
            .trim_end()
            .split(separator)
            .filter_map(|word| word.split_once('='))
            .collect();
        let key = words.get("key").copied().unwrap_or_default().to_owned();
        match words["cmd"] {
            "init" => {
                let version = words["pmi_version"];
                let rc = if (version == "2") == (self.speaks == Speaks::Two) {
                    0
                } else {
                    -1
                };
                self.line(&format!(
                    "cmd=response_to_init pmi_version={version} pmi_subversion=0 rc={rc}"
                ));
                self.framed = self.speaks == Speaks::Two;
            }
            "get_maxes" => self.line(&format!(
                "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={}",
                self.vallen
            )),
            "get_my_kvsname" => self.line("cmd=my_kvsname kvsname=kvs_test"),
            "fullinit" => {
                let place = format!("rank={};size={}", self.rank, self.size);
                self.frame(&format!("cmd=fullinit-response;rc=0;{place};appnum=-1;"));
            }
            "job-getid" => self.frame("cmd=job-getid-response;rc=0;jobid=kvs_test;"),
            "put" | "kvs-put" => {
                let value = words["value"].to_owned();
                let mut values = self.values.lock().unwrap();
                let new = values.insert(key, value).is_none();
                drop(values);
                let rc = if new { 0 } else { -1 };
                self.answer(
                    &format!("cmd=put_result rc={rc}"),
                    &format!("cmd=kvs-put-response;rc={rc};"),
                );
            }
            "barrier_in" | "kvs-fence" => {
                self.barrier.wait();
                self.answer("cmd=barrier_out", "cmd=kvs-fence-response;rc=0;");
            }
            "get" | "kvs-get" => {
                let found = self.values.lock().unwrap().get(&key).cloned();
                match found {
                    Some(value) => self.answer(
                        &format!("cmd=get_result rc=0 msg=success value={value}"),
                        &format!("cmd=kvs-get-response;rc=0;found=TRUE;value={value};"),
                    ),
                    None => self.answer(
                        "cmd=get_result rc=-1 msg=key_not_found value=unknown",
                        "cmd=kvs-get-response;rc=0;found=FALSE;",
                    ),
                }
            }
            "finalize" => {
                self.seen.finalized = true;
                self.answer("cmd=finalize_ack", "cmd=finalize-response;rc=0;");
            }
            "abort" => {
                let text = words.get("exitcode").or(words.get("msg")).copied();
                self.seen.aborted = Some(text.unwrap_or_default().to_owned());
                return false;
            }
            other => panic!("a client sends `{other}`"),
        }
        true
    }

    /// One message; `None` when the client has closed.
    fn receive(&mut self) -> Option<String> {
        if self.framed {
            let head = self.bytes(6)?;
            let length = String::from_utf8(head).unwrap().trim().parse().unwrap();
            return Some(String::from_utf8(self.bytes(length)?).unwrap());
        }
        let mut line = Vec::new();
        loop {
            match self.bytes(1)?[0] {
                b'\n' => return Some(String::from_utf8(line).unwrap()),
                byte => line.push(byte),
            }
        }
    }

    fn bytes(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn answer(&mut self, line: &str, frame: &str) {
        if self.framed {
            self.frame(frame)
        } else {
            self.line(line)
        }
    }

    fn line(&mut self, text: &str) {
        self.stream.write_all(format!("{text}\n").as_bytes()).unwrap();
    }

    fn frame(&mut self, text: &str) {
        // As Slurm pads it.
        let framed = format!("{:<6}{text}", text.len());
        self.stream.write_all(framed.as_bytes()).unwrap();
    }
}
