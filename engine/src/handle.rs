//! The methods that every handle has and its job answers: written once, for `World`, `Portals` and `Am`.

/// Gives a handle these methods; its job is in the field that is named.
macro_rules! shows_job {
    ($handle:ty, $($job:ident).+) => {
        impl $handle {
            /// The job as every handle shows it, whatever its ranks exchange.
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
            /// more ranks than `job.lazy_above` also as long as this rank has not needed it.
            pub fn hello(&self, rank: u32) -> Option<&doorbell_job::meet::Hello> {
                self.$($job).+.hello(rank)
            }

            /// The rails that lead to a rank, and why the others do not. `None` when there is no such rank,
            /// or it was not met yet.
            pub fn selection(&self, rank: u32) -> Option<&doorbell_fabric::select::Selection> {
                self.$($job).+.selection(rank)
            }

            /// The mode of a rail, where its kind has several: for xdp copy, native or zero-copy, as the
            /// kernel reports it.
            pub fn rail_how(&self, rail: &str) -> Option<&str> {
                self.$($job).+.rail_how(rail)
            }

            /// How the addresses of peers on other hosts were resolved, where `acm.mode` has the address
            /// service resolve them; empty otherwise.
            pub fn resolutions(&self) -> Vec<doorbell_job::acm::Resolution> {
                self.$($job).+.resolutions()
            }

            /// The other side's address, when two ranks met over a connection
            /// ([`Builder::build_over`](crate::Builder::build_over) and its like).
            pub fn met_over(&self) -> Option<std::net::SocketAddr> {
                self.$($job).+.met_over()
            }

            /// The kind of launcher that started this rank, when that was not `doorbell run`.
            pub fn launcher(&self) -> Option<doorbell_oob::launch::Kind> {
                self.$($job).+.launcher()
            }
        }
    };
}
