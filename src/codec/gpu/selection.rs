//! Which of the machine's adapters a device is made on.

use super::error::GpuError;
use std::sync::OnceLock;
use wgpu::{AdapterInfo, Backends, DeviceType, Instance, InstanceDescriptor, InstanceFlags};

/// Which of the machine's adapters is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// The fastest kind of GPU; among several of that kind the one whose number is `LOCAL_RANK` modulo how many there are.
    /// Software only where there is nothing else.
    #[default]
    Best,
    /// The first one whose name, or whose driver's name, contains this, in any case.
    Named(String),
    /// This number of the list that [`adapters`] gives.
    Index(usize),
    /// The number of this list that the variable `LOCAL_RANK` says, modulo how many GPUs there are.
    LocalRank,
}

impl Selection {
    /// What the variable `GRADRING_ADAPTER` says: a part of a name, a number, `local_rank`; unset:
    /// [`Best`](Selection::Best).
    ///
    /// # Errors
    /// [`GpuError::Selection`] when it is empty or no text.
    pub fn from_env() -> Result<Selection, GpuError> {
        let Some(found) = std::env::var_os("GRADRING_ADAPTER") else {
            return Ok(Selection::Best);
        };
        let text = found
            .to_str()
            .map(str::trim)
            .filter(|text| !text.is_empty());
        let Some(text) = text else {
            return Err(GpuError::Selection {
                found: found.to_string_lossy().into_owned(),
            });
        };
        Ok(if text == "local_rank" {
            Selection::LocalRank
        } else if let Ok(index) = text.parse() {
            Selection::Index(index)
        } else {
            Selection::Named(text.to_owned())
        })
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Selection::Best => f.write_str("there at all"),
            Selection::Named(name) => write!(f, "named {name:?}"),
            Selection::Index(index) => write!(f, "number {index}"),
            Selection::LocalRank => f.write_str("that of this local rank"),
        }
    }
}

/// The adapters of this machine, real ones first, each kind in the order of its drivers.
#[must_use]
pub fn adapters() -> Vec<AdapterInfo> {
    enumerated().iter().map(wgpu::Adapter::get_info).collect()
}

pub(super) fn enumerated() -> Vec<wgpu::Adapter> {
    // One for all contexts of this process: what belongs to different instances has the same identifiers, and wgpu takes
    // one for the other. Of one instance a buffer of another device is refused.
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    let instance = INSTANCE.get_or_init(|| {
        Instance::new(InstanceDescriptor {
            backends: Backends::PRIMARY,
            // Neither validation layers nor debugging marks, in debug builds either.
            flags: InstanceFlags::empty(),
            ..InstanceDescriptor::new_without_display_handle()
        })
    });
    let mut adapters = pollster::block_on(instance.enumerate_adapters(Backends::PRIMARY));
    adapters.sort_by_key(|adapter| rank_of(adapter.get_info().device_type));
    adapters
}

/// Less is better.
fn rank_of(device: DeviceType) -> u8 {
    match device {
        DeviceType::DiscreteGpu => 0,
        DeviceType::VirtualGpu => 1,
        DeviceType::IntegratedGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    }
}

/// Which of the adapters is meant.
pub(super) fn choose(
    selection: &Selection,
    found: &[AdapterInfo],
    local_rank: impl FnOnce() -> usize,
) -> Option<usize> {
    let kind = |at: usize| rank_of(found[at].device_type);
    match selection {
        Selection::Best => {
            let alike = (0..found.len())
                .take_while(|&at| kind(at) == kind(0))
                .count();
            (alike > 0).then(|| local_rank() % alike)
        }
        Selection::LocalRank => {
            let real = (0..found.len())
                .filter(|&at| kind(at) < rank_of(DeviceType::Cpu))
                .count();
            let all = if real > 0 { real } else { found.len() };
            (all > 0).then(|| local_rank() % all)
        }
        Selection::Index(index) => (*index < found.len()).then_some(*index),
        Selection::Named(name) => {
            let name = name.to_lowercase();
            let is_named = |info: &AdapterInfo| {
                let texts = [&info.name, &info.driver];
                texts.iter().any(|text| text.to_lowercase().contains(&name))
            };
            found.iter().position(is_named)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, device_type: DeviceType) -> AdapterInfo {
        AdapterInfo {
            name: name.to_owned(),
            ..AdapterInfo::new(device_type, wgpu::Backend::Vulkan)
        }
    }

    #[test]
    fn a_selection_takes_what_it_says_and_nothing_else() {
        let found = [
            info("Large One", DeviceType::DiscreteGpu),
            info("Large Two", DeviceType::DiscreteGpu),
            info("Small", DeviceType::IntegratedGpu),
            info("llvmpipe", DeviceType::Cpu),
        ];
        let chosen = |selection: Selection, rank: usize| choose(&selection, &found, || rank);
        assert_eq!(
            [0, 1, 2].map(|rank| chosen(Selection::Best, rank)),
            [Some(0), Some(1), Some(0)]
        );
        assert_eq!(
            [2, 3].map(|rank| chosen(Selection::LocalRank, rank)),
            [Some(2), Some(0)]
        );
        assert_eq!(
            [3, 4].map(|at| chosen(Selection::Index(at), 0)),
            [Some(3), None]
        );
        assert_eq!(chosen(Selection::Named("large two".into()), 0), Some(1));
        assert_eq!(chosen(Selection::Named("none".into()), 0), None);
        for selection in [Selection::Best, Selection::LocalRank, Selection::Index(0)] {
            assert_eq!(choose(&selection, &[], || 0), None);
        }
        assert_eq!(choose(&Selection::LocalRank, &found[3..], || 5), Some(0));
    }
}
