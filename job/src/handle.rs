//! What every handle on a job offers: this rank, the other ranks, and the rails to them.

use std::net::SocketAddr;

use doorbell_fabric::select::Selection;
use doorbell_oob::launch::Kind;

use crate::acm::Resolution;
use crate::config::Config;
use crate::launcher::{LauncherHandle, lock};
use crate::meet::RankInfo;
use crate::ranks::Directory;

/// A job as one of its ranks sees it, whichever messages it exchanges with the others.
#[derive(Debug)]
pub struct Job {
    rank: u32,
    config: Config,
    directory: Directory,
    launcher: Option<LauncherHandle>,
    /// The modes of rails that have several, by the rails' names.
    rail_modes: Vec<(String, String)>,
    met_over: Option<SocketAddr>,
}

impl Job {
    /// A job that this process has joined as `rank`.
    pub fn new(config: Config, rank: u32, directory: Directory) -> Self {
        Self {
            rank,
            config,
            directory,
            launcher: None,
            rail_modes: Vec::new(),
            met_over: None,
        }
    }

    /// The rank of this process, from 0.
    #[inline]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    #[inline]
    pub fn size(&self) -> u32 {
        self.directory.size()
    }

    /// The configuration in use.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the table of ranks.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns what a rank has published about itself.
    pub fn rank_info(&self, rank: u32) -> Option<&RankInfo> {
        self.directory.rank_info(rank)
    }

    /// Returns the rails that lead to a rank, with the reasons why others do not.
    pub fn selection(&self, rank: u32) -> Option<&Selection> {
        self.directory.selection(rank)
    }

    /// Returns how the addresses of peers on other hosts were resolved.
    pub fn resolutions(&self) -> Vec<Resolution> {
        self.directory.resolutions()
    }

    /// Returns the mode of a rail whose kind has several.
    pub fn rail_how(&self, rail: &str) -> Option<&str> {
        let found = self.rail_modes.iter().find(|(name, _)| name == rail)?;
        Some(&found.1)
    }

    /// Returns the other side's address, when two ranks met over a connection.
    pub fn met_over(&self) -> Option<SocketAddr> {
        self.met_over
    }

    /// Returns the kind of launcher that started this rank, when that was not `doorbell run`.
    pub fn launcher(&self) -> Option<Kind> {
        Some(lock(self.launcher.as_ref()?).kind())
    }

    /// Whether a rank has published another host than this one.
    pub fn is_apart_from(&self, rank: u32) -> bool {
        let host = |rank: u32| self.rank_info(rank).map(|info| &info.host);
        host(self.rank) != host(rank)
    }

    /// Keeps the launcher that started this rank until the end of the job. Drops a handle that only delivered
    /// an invitation.
    pub fn set_launcher(&mut self, launcher: Option<LauncherHandle>) {
        self.launcher = launcher.filter(|launcher| lock(launcher).kind() != Kind::Singleton);
    }

    /// Returns the launcher's handle.
    pub fn launcher_handle(&self) -> Option<&LauncherHandle> {
        self.launcher.as_ref()
    }

    /// Takes the launcher's handle, for the end.
    pub fn take_launcher(&mut self) -> Option<LauncherHandle> {
        self.launcher.take()
    }

    pub(crate) fn set_rail_modes(&mut self, rail_modes: Vec<(String, String)>) {
        self.rail_modes = rail_modes;
    }

    pub(crate) fn set_met_over(&mut self, address: Option<SocketAddr>) {
        self.met_over = address;
    }
}
