//! The common part of rails that measurements make of memory: no clock, no link, no sleep, no events.

/// Implements the contract [`Rail`](doorbell_fabric::rail::Rail) for a type with the fields `name` and `can`,
/// at `address`.
#[macro_export]
macro_rules! stands_still {
    ($rail:ty, $address:expr) => {
        impl doorbell_fabric::rail::Rail for $rail {
            fn name(&self) -> &doorbell_fabric::name::RailName {
                &self.name
            }
            fn capabilities(&self) -> &doorbell_fabric::caps::Capabilities {
                &self.can
            }
            fn address(&self) -> doorbell_fabric::addr::RailAddress {
                let address: fn(&Self) -> doorbell_fabric::addr::RailAddress = $address;
                address(self)
            }
            fn progress(&mut self, _: doorbell_fabric::time::Time) -> doorbell_fabric::rail::Work {
                0
            }
            fn next_deadline(&self) -> Option<doorbell_fabric::time::Time> {
                None
            }
            fn arm(&mut self) -> Result<doorbell_fabric::rail::Armed<'_>, doorbell_fabric::error::RailError> {
                Ok(doorbell_fabric::rail::Armed::Ready)
            }
            fn disarm(&mut self) {}
            fn poll_cost(&self) -> doorbell_fabric::rail::PollCost {
                doorbell_fabric::rail::PollCost::Memory
            }
            fn event(&mut self) -> Option<doorbell_fabric::event::RailEvent> {
                None
            }
            fn close(&mut self, _: doorbell_fabric::time::Time, _: doorbell_fabric::time::Time) -> bool {
                true
            }
        }
    };
}
