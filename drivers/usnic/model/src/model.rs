//! A running model: its start, its state, its end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use crate::bridge::Bridge;
use crate::engine;
use crate::error::Error;
use crate::fault::{Bounds, Faults, script};
use crate::folder::Folder;
use crate::function::Function;
use crate::options::Options;
use crate::server::{EngineMessage, Listener, Post};
use crate::violation::{Kind, Violations};
use crate::world::World;

/// Letters that may wait for the engine.
const LETTERS: usize = 256;
/// How long a request to the engine may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A function's socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Socket {
    /// The function's name: `pf`, `vf0`, ...
    pub function: String,
    /// Where it is.
    pub path: PathBuf,
}

/// What a function did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Frames that it has sent.
    pub sent: u64,
    /// Frames received into buffers.
    pub received: u64,
    /// Frames for it that matched no filter.
    pub dropped: u64,
    /// Frames for which there was no buffer.
    pub no_bufs: u64,
    /// Frames with an error.
    pub errors: u64,
}

impl Counters {
    /// Whether nothing happened.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// What each function did: the physical one first, then the virtual ones by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Functions(Vec<(String, Counters)>);

impl Functions {
    /// Names and counters, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Counters)> {
        self.0.iter().map(|(name, counters)| (name.as_str(), counters))
    }
}

impl std::ops::Index<&str> for Functions {
    type Output = Counters;

    /// # Panics
    /// Where the model has no such function.
    fn index(&self, name: &str) -> &Counters {
        let found = self.iter().find(|(known, _)| *known == name);
        found.expect("a function of the model").1
    }
}

impl Serialize for Functions {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// What a model did, all in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The totals by function, since the model began.
    pub functions: Functions,
    /// How many violations there were of each kind.
    pub violations: BTreeMap<Kind, u64>,
    /// Frames that a script held back, and that were lost because there were too many of them.
    pub overflowed: u64,
}

/// A running model. Dropped, it ends: sockets and the folder that it made are removed.
pub struct Model {
    folder: Folder,
    sockets: Vec<Socket>,
    listeners: Vec<Listener>,
    post: Option<Post>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<World>>,
    violations: Violations,
    bounds: Bounds,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("sockets", &self.sockets)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Starts a model: its functions can be called when this returns.
    ///
    /// # Errors
    /// Options that do not fit, a folder that cannot be used or is served already, no memory.
    pub fn start(options: Options) -> Result<Self, Error> {
        options.check()?;
        let mut folder = Folder::new(options.dir.as_deref())?;
        let violations = Violations::new(options.violations.as_deref())?;
        let faults = Faults::default();
        let bounds = Bounds::new(&options);
        faults.add(script::parse(&options.script, &bounds)?);
        let bridge = options.bridge.as_ref().map(Bridge::open).transpose()?;
        let names = std::iter::once("pf".to_owned()).chain((0..options.vfs).map(|vf| format!("vf{vf}")));
        let mut listeners = Vec::new();
        let mut sockets = Vec::new();
        for function in names {
            let (listener, path) = folder.listen(&format!("{function}.sock"))?;
            listeners.push(listener);
            sockets.push(Socket { function, path });
        }
        let system = |what| move |source| Error::System { what, source };
        let world =
            World::new(options, violations.clone(), faults, bridge).map_err(system("make the registers"))?;
        let (mail, letters) = sync_channel(LETTERS);
        let (flag, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (seen, stopped) = (Arc::clone(&flag), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("vic-engine".to_owned())
            .spawn(move || engine::run(world, letters, seen, stopped))
            .map_err(system("start the engine"))?;
        let post = Post {
            mail,
            flag,
            engine: thread.thread().clone(),
        };
        let mut model = Self {
            folder,
            sockets,
            listeners: Vec::new(),
            post: Some(post.clone()),
            stop,
            thread: Some(thread),
            violations,
            bounds,
        };
        for (function, listener) in listeners.into_iter().enumerate() {
            let listener =
                Listener::open(function, listener, post.clone()).map_err(system("serve a socket"))?;
            model.listeners.push(listener);
        }
        Ok(model)
    }

    /// The folder of the sockets.
    pub fn dir(&self) -> &Path {
        &self.folder.path
    }

    /// The functions' sockets: the physical one's first.
    pub fn sockets(&self) -> &[Socket] {
        &self.sockets
    }

    /// Returns what drivers did that hardware would not have forgiven.
    pub fn violations(&self) -> &Violations {
        &self.violations
    }

    /// Returns what the functions did so far, for all their clients.
    pub fn summary(&self) -> Summary {
        self.call(|world| world.summary()).unwrap_or_default()
    }

    /// Adds rules of faults to a running model. Times count from its begin; what is due already is done when
    /// this returns.
    ///
    /// # Errors
    /// [`Error::Script`] with the line that is wrong.
    pub fn inject(&self, text: &str) -> Result<(), Error> {
        let rules = script::parse(text, &self.bounds)?;
        // One that has ended has no more faults.
        self.call(move |world| {
            world.context.faults.add(rules);
            world.deeds();
        });
        Ok(())
    }

    /// Returns how many rules of faults have not acted yet, so that a test of a fault knows whether there was
    /// one. `None` from a model that has ended.
    pub fn unfired(&self) -> Option<usize> {
        self.call(|world| world.context.faults.unfired())
    }

    /// Whether it still serves: a fault may have ended it.
    pub fn is_running(&self) -> bool {
        let has_thread = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        has_thread && !self.stop.load(Ordering::Relaxed)
    }

    /// Has the engine do something, and waits for it.
    fn call<T: Send + 'static>(&self, what: impl FnOnce(&mut World) -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = mpsc::channel();
        let call = move |world: &mut World| {
            // The caller may not wait any more.
            let _ = answer.send(what(world));
        };
        self.post.as_ref()?.send(EngineMessage::Call(Box::new(call)));
        answered.recv_timeout(PATIENCE).ok()
    }

    /// Ends the model; what it did.
    pub fn stop(mut self) -> Summary {
        self.end().map(|mut world| world.summary()).unwrap_or_default()
    }

    fn end(&mut self) -> Option<World> {
        // Readers that wait for the engine to take a letter are let go by its end.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(post) = self.post.take() {
            post.engine.unpark();
        }
        let world = self.thread.take().and_then(|thread| thread.join().ok());
        for listener in self.listeners.drain(..) {
            listener.close();
        }
        self.violations.finish();
        world
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.end();
    }
}

impl World {
    fn summary(&mut self) -> Summary {
        let of = |function: &Function| {
            let [sent, received, dropped, no_bufs, errors] = function.totals();
            let counters = Counters {
                sent,
                received,
                dropped,
                no_bufs,
                errors,
            };
            (function.io.name.clone(), counters)
        };
        Summary {
            functions: Functions(self.functions.iter().map(of).collect()),
            violations: self.context.violations.counts(),
            overflowed: self.adapter.overflowed,
        }
    }
}
