//! The methods that `World`, `Portals` and `Am` share, which their job answers: written once, as a macro.

/// Defines these methods for a handle, whose job is in the named field.
macro_rules! shows_job {
    ($handle:ty, $($job:ident).+) => {
        impl $handle {
            /// Returns the job, whose methods are the same whatever its ranks exchange.
            pub fn job(&self) -> &doorbell_job::Job {
                &self.$($job).+
            }

            /// The rank of this process, from 0.
            #[inline]
            pub fn rank(&self) -> u32 {
                self.$($job).+.rank()
            }

            /// The number of ranks of the job.
            #[inline]
            pub fn size(&self) -> u32 {
                self.$($job).+.size()
            }

            /// The configuration in use.
            pub fn config(&self) -> &doorbell_job::Config {
                self.$($job).+.config()
            }

            /// What a rank has published about itself. `None` when there is no such rank, and in a world of
            /// more ranks than `job.lazy_above` until this rank has needed it.
            pub fn rank_info(&self, rank: u32) -> Option<&doorbell_job::meet::RankInfo> {
                self.$($job).+.rank_info(rank)
            }

            /// The rails that lead to a rank, and why the others do not. `None` when there is no such rank,
            /// or it is not connected yet.
            pub fn selection(&self, rank: u32) -> Option<&doorbell_fabric::select::Selection> {
                self.$($job).+.selection(rank)
            }

            /// The mode of a rail, where its kind has several: for xdp copy, native or zero-copy, as the
            /// kernel reports it.
            pub fn rail_how(&self, rail: &str) -> Option<&str> {
                self.$($job).+.rail_how(rail)
            }

            /// How the addresses of peers on other hosts were resolved, if `acm.mode` enables the address
            /// service; otherwise empty.
            pub fn resolutions(&self) -> Vec<doorbell_job::acm::Resolution> {
                self.$($job).+.resolutions()
            }

            /// The other side's address, if the two ranks were built over a connection, as by
            /// [`Builder::build_over`](crate::Builder::build_over).
            pub fn met_over(&self) -> Option<std::net::SocketAddr> {
                self.$($job).+.met_over()
            }

            /// The kind of launcher that started this rank, if that was not `doorbell run`.
            pub fn launcher(&self) -> Option<doorbell_oob::launch::Kind> {
                self.$($job).+.launcher()
            }
        }
    };
}
