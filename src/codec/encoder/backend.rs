//! Where an encoder does its work.

use crate::codec::cpu::Path;
use std::fmt;

/// Where an encoder does its work. The bytes are the same everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// On this processor, with these instructions.
    Processor(Path),
    /// On a GPU.
    Gpu {
        /// Its name.
        adapter: String,
    },
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Processor(path) => write!(f, "processor ({path})"),
            Backend::Gpu { adapter } => write!(f, "GPU ({adapter})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_says_where_it_is_and_what_it_runs_on() {
        let backend = Backend::Processor(Path::Scalar);
        assert_eq!(backend.to_string(), "processor (scalar)");
        let adapter = "Some One (Vulkan)".to_owned();
        let backend = Backend::Gpu { adapter };
        assert_eq!(backend.to_string(), "GPU (Some One (Vulkan))");
    }
}
