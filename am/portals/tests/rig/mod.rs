//! A job of some processes, each with one interface: the model's, or the real one over a simulated network.
//! Both are used by the same calls.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use doorbell_am_portals::{Config, Node};
use doorbell_fabric::ni::{Kind, Ni, NiLimits, Process};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Plane, SimConfig, SimNet, SimRail};

use crate::model::{ModelNi, World, Wrong};

/// What the processes are.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) kind: Kind,
    /// Of each process its physical name, its user, whether it has such an interface, and whether that has
    /// its map.
    pub(crate) processes: Vec<Who>,
    pub(crate) limits: NiLimits,
    /// Networks between them.
    pub(crate) rails: usize,
    pub(crate) seed: u64,
    pub(crate) sim: SimConfig,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) name: Process,
    pub(crate) uid: u32,
    pub(crate) has_interface: bool,
    pub(crate) has_map: bool,
}

impl Setting {
    /// Processes 0, 1, … of nodes 0, 1, …, all of user 1, over one network.
    pub(crate) fn new(kind: Kind, processes: usize) -> Self {
        let who = |number: usize| Who {
            name: Process::physical(number as u32, 10 + number as u32),
            uid: 1,
            has_interface: true,
            has_map: true,
        };
        Self {
            kind,
            processes: (0..processes).map(who).collect(),
            limits: NiLimits::default(),
            rails: 1,
            seed: 1,
            sim: SimConfig::default(),
        }
    }

    /// The process, as its kind of interface calls it.
    pub(crate) fn name(&self, process: usize) -> Process {
        if self.kind.logical {
            Process::rank(process as u32)
        } else {
            self.processes[process].name
        }
    }

    fn names(&self) -> Vec<Process> {
        self.processes.iter().map(|who| who.name).collect()
    }
}

/// A job of either kind.
pub(crate) trait Rig {
    /// Calls the interface of a process, which has one.
    fn call(&mut self, process: usize, f: &mut dyn FnMut(&mut dyn Ni));

    /// Everything that is on its way arrives, and whatever follows from it.
    ///
    /// # Errors
    /// When that never ends.
    fn settle(&mut self) -> Result<(), String>;
}

/// What a call of a process returns.
pub(crate) fn ask<R>(rig: &mut dyn Rig, process: usize, f: impl FnOnce(&mut dyn Ni) -> R) -> R {
    let (mut f, mut answer) = (Some(f), None);
    rig.call(process, &mut |ni| answer = f.take().map(|f| f(ni)));
    answer.expect("it was called")
}

/// A job of the model.
pub(crate) struct ModelRig {
    world: Rc<RefCell<World>>,
    nis: Vec<Option<ModelNi>>,
}

impl ModelRig {
    pub(crate) fn new(setting: &Setting, wrong: Option<Wrong>) -> Self {
        let mut world = World::new(setting.names());
        (world.wrong, world.held) = (wrong, true);
        let world = Rc::new(RefCell::new(world));
        let mut nis = Vec::new();
        for (number, who) in setting.processes.iter().enumerate() {
            if !who.has_interface {
                nis.push(None);
                continue;
            }
            world
                .borrow_mut()
                .open(number, setting.kind, who.uid, setting.limits);
            if who.has_map {
                let key = (number, setting.kind.number());
                world.borrow_mut().at(key).map = Some(setting.names());
            }
            nis.push(Some(ModelNi::new(&world, number, setting.kind)));
        }
        Self { world, nis }
    }
}

impl Rig for ModelRig {
    fn call(&mut self, process: usize, f: &mut dyn FnMut(&mut dyn Ni)) {
        f(self.nis[process].as_mut().expect("it has an interface"));
    }

    fn settle(&mut self) -> Result<(), String> {
        let mut world = self.world.borrow_mut();
        world.held = false;
        world.run();
        world.held = true;
        Ok(())
    }
}

/// The real one, over a simulated network.
pub(crate) struct RealRig {
    kind: Kind,
    pub(crate) net: SimNet,
    pub(crate) nodes: Vec<Node<SimRail>>,
    pub(crate) planes: Vec<Plane>,
    /// Processes that are gone.
    pub(crate) dead: Vec<bool>,
}

impl RealRig {
    pub(crate) fn new(setting: &Setting) -> Self {
        let net = SimNet::new(setting.seed, setting.sim);
        let mut planes = vec![Plane::FIRST];
        planes.extend((1..setting.rails).map(|rail| net.add_plane(&format!("p{rail}"))));
        let count = setting.processes.len();
        let rails: Vec<Vec<SimRail>> = (0..count)
            .map(|rank| {
                planes
                    .iter()
                    .map(|plane| net.attach_rank(rank as u32, *plane))
                    .collect()
            })
            .collect();
        let addresses: Vec<Vec<_>> = rails
            .iter()
            .map(|rails| {
                rails
                    .iter()
                    .map(|rail| (rail.address(), rail.incarnation()))
                    .collect()
            })
            .collect();
        let mut nodes = Vec::new();
        for (number, rails) in rails.into_iter().enumerate() {
            let who = setting.processes[number];
            let mut config = Config::new(who.name);
            config.uid = who.uid;
            config.seed = setting.seed;
            config.limits = setting.limits;
            config.patience = Duration::from_millis(200);
            let mut node = Node::new(config);
            for (plane, rail) in rails.into_iter().enumerate() {
                let id = node.add_rail(rail).expect("there is room for a rail");
                for (other, peer) in setting.processes.iter().enumerate() {
                    if other != number {
                        let (address, incarnation) = &addresses[other][plane];
                        node.connect(peer.name, id, address, *incarnation)
                            .expect("the peer is there");
                    }
                }
            }
            if who.has_interface {
                let given = node
                    .ni_init(setting.kind, Some(&setting.limits))
                    .expect("it is offered");
                assert_eq!(given, setting.limits, "limits are granted as requested");
                if setting.kind.logical && who.has_map {
                    node.set_map(setting.kind, &setting.names()).expect("a first map");
                }
            }
            nodes.push(node);
        }
        Self {
            kind: setting.kind,
            net,
            dead: vec![false; nodes.len()],
            nodes,
            planes,
        }
    }

    /// Every process polls until none has anything to do.
    pub(crate) fn pump(&mut self) -> Result<(), String> {
        for _ in 0..PASSES {
            let now = self.net.now();
            let mut work = 0;
            for (node, _) in self.nodes.iter_mut().zip(&self.dead).filter(|(_, dead)| !**dead) {
                node.flush();
                work += node.poll(64);
                work += node.progress(now);
            }
            if work == 0 {
                return Ok(());
            }
        }
        Err("the processes never come to rest".to_string())
    }

    /// Time goes by, and the network does what it does.
    pub(crate) fn wait(&mut self, time: Duration) -> Result<(), String> {
        let end = self.net.now() + time;
        loop {
            self.pump()?;
            let due = (self.nodes.iter().zip(&self.dead).filter(|(_, dead)| !**dead))
                .filter_map(|(node, _)| node.next_deadline())
                .filter(|due| *due > self.net.now())
                .chain(self.net.next_event())
                .min();
            match due {
                Some(due) if due < end => self.net.advance_to(due.max(self.net.now() + TICK)),
                _ => break,
            }
        }
        self.net.advance_to(end);
        self.pump()
    }

    /// When the first process or the network has something to do.
    #[allow(dead_code)]
    pub(crate) fn now(&self) -> Time {
        self.net.now()
    }
}

impl Rig for RealRig {
    fn call(&mut self, process: usize, f: &mut dyn FnMut(&mut dyn Ni)) {
        f(&mut self.nodes[process].ni(self.kind));
    }

    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..EVENTS {
            self.pump()?;
            if self.net.advance_to_next_event().is_none() {
                return Ok(());
            }
        }
        Err("the conversation never ends".to_string())
    }
}

/// Passes without time going by, at most: more means that something spins.
const PASSES: usize = 10_000;
/// Things that happen in the network until it is quiet, at most.
const EVENTS: usize = 100_000;
/// A deadline that has passed is due again after this time.
const TICK: Duration = Duration::from_nanos(1);
