//! Plays one story, line by line. The words are explained in `main.rs`.

use std::collections::{BTreeMap, VecDeque};

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::{
    ANY, AckReq, Atomic, Count, CtHandle, Entry, EntryHandle, EntryOptions, EqGet, EqHandle, Event,
    EventKind, FetchAtomic, Get, List, Md, MdHandle, MdOptions, Memory, NID_ANY, NiError, NiFail, PID_ANY,
    Piece, Process, PtOptions, Put, Register, Search, Target, Triggered,
};

use crate::rig::{Rig, Setting, ask};
use crate::words::{
    Told, Words, atomic_kind, datatype, each, entry_option, error_name, event_kind, fail, md_option, number,
    small, table_option, value,
};

/// Names of a process.
type Named<T> = BTreeMap<(usize, String), T>;

pub(crate) struct Play<'a> {
    rig: &'a mut dyn Rig,
    setting: &'a Setting,
    eqs: Named<EqHandle>,
    cts: Named<CtHandle>,
    mds: Named<MdHandle>,
    entries: Named<EntryHandle>,
    memory: Named<Memory>,
    /// Events that were taken from their queue and not expected yet.
    seen: BTreeMap<(usize, String), VecDeque<EqGet>>,
}

/// Plays the lines of a story (each with its number); the error names the line.
pub(crate) fn play(lines: &[(usize, Vec<&str>)], setting: &Setting, rig: &mut dyn Rig) -> Told {
    let mut play = Play {
        rig,
        setting,
        eqs: BTreeMap::new(),
        cts: BTreeMap::new(),
        mds: BTreeMap::new(),
        entries: BTreeMap::new(),
        memory: BTreeMap::new(),
        seen: BTreeMap::new(),
    };
    for (at, words) in lines {
        let told = play.act(words);
        told.map_err(|why| format!("line {at}: {}\n  {why}", words.join(" ")))?;
    }
    play.nothing_left()
}

impl Play<'_> {
    /// A line, and what follows from it.
    fn act(&mut self, words: &[&str]) -> Told {
        match *words {
            ["unseen", ref rest @ ..] => self.happen(rest),
            ["settle"] => self.rig.settle(),
            ["expect", ref rest @ ..] => self.expect(rest),
            _ => {
                self.happen(words)?;
                self.rig.settle()
            }
        }
    }

    /// A line of a process, and the error that it ends with, if it should.
    fn happen(&mut self, words: &[&str]) -> Told {
        let (words, wanted) = match *words {
            [ref words @ .., "->", error] => (words, Some(error)),
            _ => (words, None),
        };
        let mut words = Words::new(words);
        let rank: usize = small(words.next()?)?;
        if rank >= self.setting.processes.len() {
            return Err(format!("there is no process {rank}"));
        }
        let verb = words.next()?;
        let done = self.call(rank, verb, &mut words)?;
        words.end()?;
        match (done, wanted) {
            (Ok(()), None) => Ok(()),
            (Err(error), Some(wanted)) if error_name(error) == wanted => Ok(()),
            (Ok(()), Some(wanted)) => Err(format!("it did not end with {wanted}")),
            (Err(error), _) => Err(format!("it ends with {}: {error}", error_name(error))),
        }
    }

    fn call(&mut self, rank: usize, verb: &str, words: &mut Words<'_>) -> Told<Result<(), NiError>> {
        Ok(match verb {
            "eq" => {
                let (name, count) = (words.next()?.to_string(), words.next_number()? as usize);
                let made = ask(self.rig, rank, |ni| ni.eq_alloc(count));
                made.map(|eq| {
                    self.eqs.insert((rank, name), eq);
                })
            }
            "ct" => {
                let name = words.next()?.to_string();
                let made = ask(self.rig, rank, |ni| ni.ct_alloc());
                made.map(|ct| {
                    self.cts.insert((rank, name), ct);
                })
            }
            "pt" => self.table(rank, words)?,
            "md" => {
                let name = words.next()?.to_string();
                let md = self.md(rank, &name, words)?;
                let made = ask(self.rig, rank, |ni| ni.md_bind(md));
                made.map(|md| {
                    self.mds.insert((rank, name), md);
                })
            }
            "append" => {
                let name = words.next()?.to_string();
                let (index, entry, list, user) = self.entry(rank, &name, words)?;
                let made = ask(self.rig, rank, |ni| ni.append(index, entry, list, user));
                made.map(|entry| {
                    self.entries.insert((rank, name), entry);
                })
            }
            "search" => {
                let how = match words.next()? {
                    "only" => Search::Only,
                    "delete" => Search::Delete,
                    how => return Err(format!("what is to search {how}?")),
                };
                let (index, entry, _, user) = self.entry(rank, "", words)?;
                ask(self.rig, rank, |ni| ni.search(index, &entry, how, user))
            }
            "unlink" => {
                let entry = *find(&self.entries, rank, words.next()?)?;
                ask(self.rig, rank, |ni| ni.unlink(entry))
            }
            "enable" => {
                let index = small(words.next()?)?;
                ask(self.rig, rank, |ni| ni.pt_enable(index))
            }
            "disable" => {
                let index = small(words.next()?)?;
                ask(self.rig, rank, |ni| ni.pt_disable(index)).map(|_| ())
            }
            "free" => self.free(rank, words)?,
            "put" => {
                let put = self.put(rank, words)?;
                ask(self.rig, rank, |ni| ni.put(&put))
            }
            "get" => {
                let get = self.get(rank, words)?;
                ask(self.rig, rank, |ni| ni.get(&get))
            }
            "atomic" => {
                let atomic = self.atomic(rank, words)?;
                ask(self.rig, rank, |ni| ni.atomic(&atomic))
            }
            "fetch" => {
                let fetch = self.fetch(rank, words)?;
                ask(self.rig, rank, |ni| ni.fetch_atomic(&fetch))
            }
            "inc" => {
                let (ct, by) = self.counts(rank, words)?;
                ask(self.rig, rank, |ni| ni.ct_inc(ct, by))
            }
            "set" => {
                let (ct, to) = self.counts(rank, words)?;
                ask(self.rig, rank, |ni| ni.ct_set(ct, to))
            }
            "cancel" => {
                let ct = *find(&self.cts, rank, words.next()?)?;
                ask(self.rig, rank, |ni| ni.ct_cancel_triggered(ct))
            }
            "trigger" => self.trigger(rank, words)?,
            "write" => {
                self.write(rank, words)?;
                Ok(())
            }
            _ => return Err(format!("what is `{verb}`?")),
        })
    }

    fn table(&mut self, rank: usize, words: &mut Words<'_>) -> Told<Result<(), NiError>> {
        let index = match words.next()? {
            "any" => None,
            index => Some(small(index)?),
        };
        let eq = self.optional(&self.eqs, rank, words.value("eq")?)?;
        let options = each(words.value("options")?, table_option)?;
        let options = options.into_iter().fold(PtOptions::NONE, PtOptions::with);
        let made = ask(self.rig, rank, |ni| ni.pt_alloc(options, eq, index));
        Ok(made.map(|_| ()))
    }

    fn free(&mut self, rank: usize, words: &mut Words<'_>) -> Told<Result<(), NiError>> {
        let (what, name) = (words.next()?, words.next()?);
        Ok(match what {
            "pt" => {
                let index = small(name)?;
                ask(self.rig, rank, |ni| ni.pt_free(index))
            }
            "eq" => {
                let eq = *find(&self.eqs, rank, name)?;
                let freed = ask(self.rig, rank, |ni| ni.eq_free(eq));
                if freed.is_ok() {
                    self.eqs.remove(&(rank, name.to_string()));
                }
                freed
            }
            "ct" => {
                let ct = *find(&self.cts, rank, name)?;
                ask(self.rig, rank, |ni| ni.ct_free(ct))
            }
            "md" => {
                let md = *find(&self.mds, rank, name)?;
                ask(self.rig, rank, |ni| ni.md_release(md))
            }
            _ => return Err(format!("how is `{what}` freed?")),
        })
    }

    fn optional<T: Copy>(&self, all: &Named<T>, rank: usize, name: Option<&str>) -> Told<Option<T>> {
        name.map(|name| find(all, rank, name).copied()).transpose()
    }

    /// Memory of its own, or with `pieces` in several pieces with gaps between them.
    fn room(&mut self, rank: usize, name: &str, words: &mut Words<'_>) -> Told<Memory> {
        let pieces: Vec<usize> = each(words.value("pieces")?, small)?;
        let length = words.number("length", 0)? as usize;
        let fill = words.number("fill", 0)? as u8;
        let memory = if !pieces.is_empty() {
            let all = new_region(pieces.iter().map(|length| length + 3).sum())?;
            let mut at = 0;
            let slices = pieces.iter().map(|length| {
                let slice = all.slice(at, *length).expect("inside");
                at += length + 3;
                Landing::Region(slice)
            });
            Memory::Many(slices.collect())
        } else if length == 0 {
            Memory::Empty
        } else {
            Memory::One(Landing::Region(new_region(length)?.whole()))
        };
        for piece in pieces_of(&memory) {
            piece.write(0, &vec![fill; piece.len()]);
        }
        if !name.is_empty() {
            self.memory.insert((rank, name.to_string()), memory.clone());
        }
        Ok(memory)
    }

    fn md(&mut self, rank: usize, name: &str, words: &mut Words<'_>) -> Told<Md> {
        let options = each(words.value("options")?, md_option)?;
        Ok(Md {
            memory: self.room(rank, name, words)?,
            options: options.into_iter().fold(MdOptions::NONE, MdOptions::with),
            eq: self.optional(&self.eqs, rank, words.value("eq")?)?,
            ct: self.optional(&self.cts, rank, words.value("ct")?)?,
        })
    }

    fn entry(&mut self, rank: usize, name: &str, words: &mut Words<'_>) -> Told<(u32, Entry, List, u64)> {
        let index = words.number("pt", 0)? as u32;
        let list = match words.value("list")? {
            None | Some("priority") => List::Priority,
            Some("overflow") => List::Overflow,
            Some(list) => return Err(format!("what is the list `{list}`?")),
        };
        let options = each(words.value("options")?, entry_option)?;
        let entry = Entry {
            memory: self.room(rank, name, words)?,
            ct: self.optional(&self.cts, rank, words.value("ct")?)?,
            uid: words.number("uid", u64::from(ANY))? as u32,
            options: options.into_iter().fold(EntryOptions::NONE, EntryOptions::with),
            match_id: self.source(words.value("from")?)?,
            match_bits: words.number("match", 0)?,
            ignore_bits: words.number("ignore", 0)?,
            min_free: words.number("min-free", 0)?,
        };
        Ok((index, entry, list, words.number("user", 0)?))
    }

    /// `any`, a process by its number, or `nid:pid` with `any` for either.
    fn source(&self, word: Option<&str>) -> Told<Process> {
        match word {
            None | Some("any") if self.setting.kind.logical => Ok(Process::rank(ANY)),
            None | Some("any") => Ok(Process::physical(NID_ANY, PID_ANY)),
            Some(word) => match word.split_once(':') {
                None => Ok(self.setting.name(small(word)?)),
                Some((nid, pid)) => {
                    let part = |word, any| if word == "any" { Ok(any) } else { small(word) };
                    Ok(Process::physical(part(nid, NID_ANY)?, part(pid, PID_ANY)?))
                }
            },
        }
    }

    fn target(&self, words: &mut Words<'_>) -> Told<Target> {
        let to = words.value("to")?.ok_or("to whom?")?;
        let process = match to.split_once(':') {
            Some((nid, pid)) => Process::physical(small(nid)?, small(pid)?),
            None => self.setting.name(small(to)?),
        };
        Ok(Target {
            process,
            pt_index: words.number("pt", 0)? as u32,
            match_bits: words.number("bits", 0)?,
            remote_offset: words.number("offset", 0)?,
        })
    }

    fn piece(&self, rank: usize, words: &mut Words<'_>) -> Told<Piece> {
        let md = *find(&self.mds, rank, words.next()?)?;
        Ok(Piece {
            md,
            offset: words.number("at", 0)?,
        })
    }

    fn put(&self, rank: usize, words: &mut Words<'_>) -> Told<Put> {
        Ok(Put {
            from: self.piece(rank, words)?,
            length: words.number("length", 0)?,
            ack: match words.value("ack")? {
                None => AckReq::None,
                Some("full") => AckReq::Full,
                Some("ct") => AckReq::Ct,
                Some("oc") => AckReq::Oc,
                Some(ack) => return Err(format!("what is the ack `{ack}`?")),
            },
            target: self.target(words)?,
            user_ptr: words.number("user", 0)?,
            hdr_data: words.number("hdr", 0)?,
        })
    }

    fn get(&self, rank: usize, words: &mut Words<'_>) -> Told<Get> {
        Ok(Get {
            into: self.piece(rank, words)?,
            length: words.number("length", 0)?,
            target: self.target(words)?,
            user_ptr: words.number("user", 0)?,
        })
    }

    fn atomic(&self, rank: usize, words: &mut Words<'_>) -> Told<Atomic> {
        let (kind, datatype) = (atomic_kind(words.next()?)?, datatype(words.next()?)?);
        Ok(Atomic {
            put: self.put(rank, words)?,
            kind,
            datatype,
        })
    }

    fn fetch(&self, rank: usize, words: &mut Words<'_>) -> Told<FetchAtomic> {
        let (kind, datatype) = (atomic_kind(words.next()?)?, datatype(words.next()?)?);
        let into = *find(&self.mds, rank, words.next()?)?;
        let from = words.value("from")?.ok_or("from where?")?;
        let mut operand = [0; 32];
        if let Some(word) = words.value("operand")? {
            let bytes = value(datatype, word)?;
            operand[..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(FetchAtomic {
            into: Piece {
                md: into,
                offset: words.number("into", 0)?,
            },
            from: Piece {
                md: *find(&self.mds, rank, from)?,
                offset: words.number("at", 0)?,
            },
            length: words.number("length", datatype.size() as u64)?,
            target: self.target(words)?,
            user_ptr: words.number("user", 0)?,
            hdr_data: words.number("hdr", 0)?,
            kind,
            datatype,
            operand,
        })
    }

    fn counts(&self, rank: usize, words: &mut Words<'_>) -> Told<(CtHandle, Count)> {
        let ct = *find(&self.cts, rank, words.next()?)?;
        let (success, failure) = (words.next_number()?, words.next_number()?);
        Ok((ct, Count { success, failure }))
    }

    fn trigger(&mut self, rank: usize, words: &mut Words<'_>) -> Told<Result<(), NiError>> {
        let ct = *find(&self.cts, rank, words.next()?)?;
        let threshold = words.next_number()?;
        let mut name = None;
        let what = match words.next()? {
            "put" => Triggered::Put(self.put(rank, words)?),
            "get" => Triggered::Get(self.get(rank, words)?),
            "atomic" => Triggered::Atomic(self.atomic(rank, words)?),
            "fetch" => Triggered::FetchAtomic(self.fetch(rank, words)?),
            "inc" => {
                let (ct, by) = self.counts(rank, words)?;
                Triggered::CtInc(ct, by)
            }
            "set" => {
                let (ct, to) = self.counts(rank, words)?;
                Triggered::CtSet(ct, to)
            }
            "append" => {
                name = Some(words.next()?.to_string());
                let (pt_index, entry, list, user_ptr) =
                    self.entry(rank, name.as_deref().unwrap_or(""), words)?;
                Triggered::Append {
                    pt_index,
                    entry: Box::new(entry),
                    list,
                    user_ptr,
                }
            }
            "unlink" => Triggered::Unlink(*find(&self.entries, rank, words.next()?)?),
            what => return Err(format!("how is `{what}` triggered?")),
        };
        let made = ask(self.rig, rank, |ni| ni.trigger(ct, threshold, what));
        Ok(made.map(|entry| {
            if let (Some(name), Some(entry)) = (name, entry) {
                self.entries.insert((rank, name), entry);
            }
        }))
    }

    /// `NAME at OFFSET TYPE VALUE…`
    fn write(&mut self, rank: usize, words: &mut Words<'_>) -> Told {
        let memory = find(&self.memory, rank, words.next()?)?.clone();
        let mut at = words.number("at", 0)? as usize;
        let kind = datatype(words.next()?)?;
        for word in words.all() {
            let bytes = value(kind, word)?;
            write(&memory, at, &bytes);
            at += bytes.len();
        }
        Ok(())
    }

    fn expect(&mut self, words: &[&str]) -> Told {
        let mut words = Words::new(words);
        let rank: usize = small(words.next()?)?;
        let what = words.next()?;
        match what {
            "count" => {
                let (ct, wanted) = self.counts(rank, &mut words)?;
                let is = ask(self.rig, rank, |ni| ni.ct_get(ct)).map_err(|error| error.to_string())?;
                ensure(is == wanted, || format!("it is {is:?}"))?;
            }
            // Whether a wait for a count is over.
            "reaches" => {
                let ct = *find(&self.cts, rank, words.next()?)?;
                let test = words.next_number()?;
                let is = ask(self.rig, rank, |ni| ni.ct_get(ct)).map_err(|error| error.to_string())?;
                let wanted = !words.has("not");
                ensure(is.reaches(test) == wanted, || format!("it is {is:?}"))?;
            }
            "register" => {
                let register = match words.next()? {
                    "drops" => Register::DropCount,
                    "permissions" => Register::PermissionViolations,
                    "operations" => Register::OperationViolations,
                    register => return Err(format!("what is the register `{register}`?")),
                };
                let (is, wanted) = (
                    ask(self.rig, rank, |ni| ni.status(register)),
                    words.next_number()?,
                );
                ensure(is == wanted, || format!("it is {is}"))?;
            }
            "memory" => {
                let memory = find(&self.memory, rank, words.next()?)?.clone();
                let mut at = words.number("at", 0)? as usize;
                let kind = datatype(words.next()?)?;
                for word in words.all() {
                    let wanted = value(kind, word)?;
                    let all = read(&memory);
                    let is = all.get(at..at + wanted.len()).ok_or("it is shorter")?;
                    ensure(is == wanted, || {
                        format!("at {at} it is {is:?}, and not {wanted:?}")
                    })?;
                    at += wanted.len();
                }
            }
            queue => self.expect_event(rank, queue, &mut words)?,
        }
        words.end()
    }

    fn take(&mut self, rank: usize, queue: &str) -> Told<EqGet> {
        let eq = *find(&self.eqs, rank, queue)?;
        let seen = self.seen.entry((rank, queue.to_string())).or_default();
        if let Some(event) = seen.pop_front() {
            return Ok(event);
        }
        ask(self.rig, rank, |ni| ni.eq_get(eq)).map_err(|error| error.to_string())
    }

    fn expect_event(&mut self, rank: usize, queue: &str, words: &mut Words<'_>) -> Told {
        let mut word = words.next()?;
        if word == "nothing" {
            return match self.take(rank, queue)? {
                EqGet::Empty => Ok(()),
                got => Err(format!("there is {got:?}")),
            };
        }
        if word == "any" {
            return self.expect_any(rank, queue, words);
        }
        let wants_drop = word == "dropped";
        if wants_drop {
            word = words.next()?;
        }
        let wanted = self.wanted(rank, word, words)?;
        match self.take(rank, queue)? {
            EqGet::Empty => Err("there is no event".to_string()),
            EqGet::Event(event) if !wants_drop => wanted.check(&event),
            EqGet::Dropped(event) if wants_drop => wanted.check(&event),
            got => Err(format!("it is {got:?}")),
        }
    }

    /// The event is there, wherever it stands.
    fn expect_any(&mut self, rank: usize, queue: &str, words: &mut Words<'_>) -> Told {
        let word = words.next()?;
        let wanted = self.wanted(rank, word, words)?;
        let mut all = VecDeque::new();
        loop {
            match self.take(rank, queue)? {
                EqGet::Empty => break,
                event => all.push_back(event),
            }
        }
        let fits = |got: &EqGet| matches!(got, EqGet::Event(event) if wanted.check(event).is_ok());
        let at = all.iter().position(fits);
        let told = match at {
            Some(at) => {
                all.remove(at);
                Ok(())
            }
            None => Err(format!("there are only {all:#?}")),
        };
        self.seen.insert((rank, queue.to_string()), all);
        told
    }

    fn wanted(&self, rank: usize, kind: &str, words: &mut Words<'_>) -> Told<Wanted> {
        let mut wanted = Wanted {
            kind: event_kind(kind)?,
            fail: Some(NiFail::Ok),
            start: None,
            fields: Vec::new(),
        };
        match words.value("fail")? {
            None => {}
            Some("any") => wanted.fail = None,
            Some(word) => wanted.fail = Some(fail(word)?),
        }
        if let Some(name) = words.value("in")? {
            let (memory, place) = (find(&self.memory, rank, name)?, words.number("place", 0)?);
            wanted.start = Some(memory.address(place as usize));
            wanted.fields.push(("place", place));
        }
        if let Some(word) = words.value("from")? {
            let process = self.source(Some(word))?;
            wanted.fields.push(("nid", u64::from(process.nid)));
            wanted.fields.push(("pid", u64::from(process.pid)));
        }
        if let Some(list) = words.value("list")? {
            wanted.fields.push(("list", u64::from(list == "overflow")));
        }
        for key in FIELDS {
            if let Some(word) = words.value(key)? {
                wanted.fields.push((key, number(word)?));
            }
        }
        if let Some(word) = words.value("op")? {
            wanted.fields.push(("op", atomic_kind(word)? as u64));
        }
        if let Some(word) = words.value("type")? {
            wanted.fields.push(("type", datatype(word)? as u64));
        }
        Ok(wanted)
    }

    /// A story has to list every event.
    fn nothing_left(&mut self) -> Told {
        for (rank, queue) in self.eqs.keys().cloned().collect::<Vec<_>>() {
            match self.take(rank, &queue)? {
                EqGet::Empty => {}
                got => return Err(format!("the end: process {rank} has in {queue} {got:#?}")),
            }
        }
        Ok(())
    }
}

/// Numbers of an event that a story may compare.
const FIELDS: [&str; 10] = [
    "user", "hdr", "bits", "rlength", "mlength", "offset", "uid", "pt", "place", "nid",
];

/// The event that a line expects.
struct Wanted {
    kind: EventKind,
    fail: Option<NiFail>,
    start: Option<usize>,
    fields: Vec<(&'static str, u64)>,
}

impl Wanted {
    fn check(&self, event: &Event) -> Told {
        let wrong = |what: &str| Err(format!("{what} is not so: {event:#?}"));
        if event.kind != self.kind {
            return wrong("the kind");
        }
        if self.fail.is_some_and(|fail| fail != event.fail) {
            return wrong("how it ended");
        }
        if self.start.is_some_and(|start| start != event.start) {
            return wrong("the start");
        }
        for (name, wanted) in &self.fields {
            let is = match *name {
                "user" => event.user_ptr,
                "hdr" => event.hdr_data,
                "bits" => event.match_bits,
                "rlength" => event.rlength,
                "mlength" => event.mlength,
                "offset" => event.remote_offset,
                "uid" => u64::from(event.uid),
                "pt" => u64::from(event.pt_index),
                "place" => event.place,
                "nid" => u64::from(event.initiator.nid),
                "pid" => u64::from(event.initiator.pid),
                "list" => event.list as u64,
                "op" => u64::from(event.atomic_operation),
                _ => u64::from(event.atomic_type),
            };
            if is != *wanted {
                return wrong(name);
            }
        }
        Ok(())
    }
}

fn find<'a, T>(all: &'a Named<T>, rank: usize, name: &str) -> Told<&'a T> {
    all.get(&(rank, name.to_string()))
        .ok_or_else(|| format!("process {rank} has no `{name}`"))
}

fn ensure(so: bool, otherwise: impl FnOnce() -> String) -> Told {
    if so { Ok(()) } else { Err(otherwise()) }
}

fn new_region(length: usize) -> Told<Region> {
    Region::new(length).map_err(|error| error.to_string())
}

fn pieces_of(memory: &Memory) -> Vec<Landing> {
    match memory {
        Memory::Empty => Vec::new(),
        Memory::One(piece) => vec![piece.clone()],
        Memory::Many(pieces) => pieces.to_vec(),
    }
}

fn read(memory: &Memory) -> Vec<u8> {
    let bytes = |piece: &Landing| match piece {
        Landing::Loan(loan) => loan.as_shared().to_vec(),
        Landing::Region(slice) => slice.as_shared().to_vec(),
    };
    pieces_of(memory).iter().flat_map(bytes).collect()
}

fn write(memory: &Memory, at: usize, bytes: &[u8]) {
    crate::model::write(memory, at, bytes);
}
