//! Where updates are encoded: what is asked for, and what comes of it.
//!
//! It is each replica's own choice: the bytes are the same from everywhere.

#[cfg(feature = "gpu")]
use crate::codec::gpu::{GpuContext, GpuError, Selection, adapters};
use crate::codec::{Backend, Encoder};
use crate::replica::Error;
#[cfg(feature = "gpu")]
use std::sync::OnceLock;

/// The variable that says what is asked for where the program leaves it open.
const VARIABLE: &str = "GRADRING_BACKEND";

/// A vector of at least so many elements is large: encoding it takes longer than the way to a GPU and back.
#[cfg(feature = "gpu")]
const LARGE: usize = 1 << 22;

/// Where updates are to be encoded. The bytes are the same from everywhere, and replicas need not agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// What the variable `GRADRING_BACKEND` says (`auto`, `processor` or `gpu`). Where it says nothing, or `auto`: a GPU if
    /// the exchange was given the context of one, or if the vector is large (2^22 elements) and there is one with room for
    /// it; else, and where settings are such that a GPU cannot encode, the processor. A software adapter is no GPU.
    #[default]
    Auto,
    /// This processor, whatever vectors are on a GPU.
    Processor,
    /// A GPU: that of the context which the exchange was given, or else the one that the variable `GRADRING_ADAPTER` selects,
    /// be it a software adapter. Settings with which a GPU cannot encode are an error.
    Gpu,
}

/// Where an update was encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// On the processor.
    #[default]
    Processor,
    /// On a GPU.
    Gpu,
}

impl BackendKind {
    pub(super) fn of(encoder: &Encoder) -> Self {
        match encoder.backend() {
            Backend::Gpu { .. } => Self::Gpu,
            _ => Self::Processor,
        }
    }
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Processor => "processor",
            Self::Gpu => "gpu",
        })
    }
}

impl BackendChoice {
    /// What was asked for: by the program, or else by the variable.
    pub(super) fn or_from_env(self) -> Result<Self, Error> {
        match (self, std::env::var_os(VARIABLE)) {
            (Self::Auto, Some(text)) => Self::named(&text.to_string_lossy()),
            _ => Ok(self),
        }
    }

    fn named(text: &str) -> Result<Self, Error> {
        match text {
            "auto" => Ok(Self::Auto),
            "processor" => Ok(Self::Processor),
            "gpu" => Ok(Self::Gpu),
            _ => Err(Error::Invalid {
                what: VARIABLE,
                expected: "auto, processor or gpu".into(),
                found: format!("{text:?}"),
            }),
        }
    }
}

/// Refuses a GPU where there can be none.
#[cfg(not(feature = "gpu"))]
pub(super) fn choose(asked: BackendChoice) -> Result<(), Error> {
    if asked == BackendChoice::Gpu {
        return Err(Error::Invalid {
            what: "a GPU to encode on",
            expected: "a build with the feature gpu".into(),
            found: "one without it".into(),
        });
    }
    Ok(())
}

/// What is known when the choice is made.
#[cfg(feature = "gpu")]
pub(super) struct Known<'a> {
    pub(super) asked: BackendChoice,
    /// The caller's.
    pub(super) context: Option<&'a GpuContext>,
    pub(super) elements: usize,
    /// The setting with which a GPU cannot encode, if there is one.
    pub(super) cannot: Option<String>,
}

/// Where updates are encoded.
#[cfg(feature = "gpu")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Processor,
    /// On the caller's device.
    Given,
    /// On a device that is made for it: software only if that may be.
    Own {
        software: bool,
    },
}

/// The device on which updates are encoded; `None`: the processor.
#[cfg(feature = "gpu")]
pub(super) fn choose(known: &Known<'_>) -> Result<Option<GpuContext>, Error> {
    // What it holds is looked at even where it does not count: a mistake is told at once, on every machine.
    let selection = match known.context {
        Some(_) => Selection::Best,
        None => Selection::from_env().map_err(|_| Error::Invalid {
            what: "GRADRING_ADAPTER",
            expected: "a part of an adapter's name, a number, or local_rank".into(),
            found: format!(
                "{:?}",
                std::env::var_os("GRADRING_ADAPTER").unwrap_or_default()
            ),
        })?,
    };
    let is_real = known.context.map(|context| !context.is_software());
    let cannot = known.cannot.as_deref();
    match decide(known.asked, is_real, known.elements, cannot, has_gpu)? {
        Decision::Processor => Ok(None),
        Decision::Given => Ok(known.context.cloned()),
        Decision::Own { software } => own(&selection, software),
    }
}

#[cfg(feature = "gpu")]
fn decide(
    asked: BackendChoice,
    given_is_real: Option<bool>,
    elements: usize,
    cannot: Option<&str>,
    has_gpu: impl FnOnce() -> bool,
) -> Result<Decision, Error> {
    Ok(match (asked, cannot, given_is_real) {
        (BackendChoice::Gpu, Some(what), _) => {
            return Err(Error::Invalid {
                what: "a GPU to encode on",
                expected: "settings with which it can".into(),
                found: what.to_owned(),
            });
        }
        (BackendChoice::Gpu, None, Some(_)) => Decision::Given,
        (BackendChoice::Gpu, None, None) => Decision::Own { software: true },
        (BackendChoice::Processor, ..) | (BackendChoice::Auto, Some(_), _) => Decision::Processor,
        (BackendChoice::Auto, None, Some(true)) => Decision::Given,
        (BackendChoice::Auto, None, Some(false)) => Decision::Processor,
        (BackendChoice::Auto, None, None) if elements >= LARGE && has_gpu() => {
            Decision::Own { software: false }
        }
        (BackendChoice::Auto, None, None) => Decision::Processor,
    })
}

/// Whether the machine has a GPU. Asking takes a third of a second: it is done once.
#[cfg(feature = "gpu")]
fn has_gpu() -> bool {
    static HAS_GPU: OnceLock<bool> = OnceLock::new();
    *HAS_GPU.get_or_init(|| {
        let is_real = |adapter: &crate::codec::gpu::wgpu::AdapterInfo| {
            adapter.device_type != crate::codec::gpu::wgpu::DeviceType::Cpu
        };
        adapters().iter().any(is_real)
    })
}

/// A device of the exchange's own. Where one need not be had, only a mistake in what was asked for is an error.
#[cfg(feature = "gpu")]
fn own(selection: &Selection, software: bool) -> Result<Option<GpuContext>, Error> {
    match GpuContext::new(selection) {
        Ok(context) if software || !context.is_software() => Ok(Some(context)),
        Ok(_) => Ok(None),
        Err(error) => {
            let is_asked_for = matches!(error, GpuError::NoAdapter { .. });
            if software || is_asked_for && *selection != Selection::Best {
                Err(Error::Gpu(error))
            } else {
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_has_three_names_and_anything_else_is_refused() {
        let named = |text| BackendChoice::named(text).ok();
        assert_eq!(named("auto"), Some(BackendChoice::Auto));
        assert_eq!(named("processor"), Some(BackendChoice::Processor));
        assert_eq!(named("gpu"), Some(BackendChoice::Gpu));
        for text in ["", "GPU", " gpu", "cpu"] {
            let error = BackendChoice::named(text).expect_err(text).to_string();
            assert!(error.contains("GRADRING_BACKEND"), "{error}");
        }
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn a_gpu_encodes_where_updates_are_or_where_the_vector_is_large_and_software_only_where_forced()
    {
        use BackendChoice::{Auto, Gpu, Processor};
        let decided = |asked, given: Option<bool>, elements, has_gpu| {
            decide(asked, given, elements, None, || has_gpu).expect("settings with which it can")
        };
        // The caller's context: of a GPU, of software, none.
        let [real, software, none] = [Some(true), Some(false), None];
        for elements in [1, LARGE] {
            for has_gpu in [false, true] {
                let decided = |asked, given| decided(asked, given, elements, has_gpu);
                assert_eq!(decided(Auto, real), Decision::Given);
                assert_eq!(decided(Auto, software), Decision::Processor);
                assert_eq!(decided(Gpu, real), Decision::Given);
                assert_eq!(decided(Gpu, software), Decision::Given);
                assert_eq!(decided(Gpu, none), Decision::Own { software: true });
                for given in [real, software, none] {
                    assert_eq!(decided(Processor, given), Decision::Processor);
                }
            }
        }
        assert_eq!(decided(Auto, none, LARGE - 1, true), Decision::Processor);
        assert_eq!(decided(Auto, none, LARGE, false), Decision::Processor);
        let own = Decision::Own { software: false };
        assert_eq!(decided(Auto, none, LARGE, true), own);
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn settings_with_which_a_gpu_cannot_encode_are_an_error_only_where_it_is_forced() {
        let decided = |asked| decide(asked, Some(true), LARGE, Some("a momentum memory"), || true);
        for asked in [BackendChoice::Auto, BackendChoice::Processor] {
            assert_eq!(decided(asked).ok(), Some(Decision::Processor));
        }
        let error = decided(BackendChoice::Gpu).expect_err("it is forced");
        assert!(error.to_string().contains("a momentum memory"), "{error}");
    }

    #[cfg(feature = "gpu")]
    #[test]
    fn machines_are_not_asked_for_their_adapters_where_that_changes_nothing() {
        for (asked, given, elements) in [
            (BackendChoice::Processor, None, LARGE),
            (BackendChoice::Auto, None, LARGE - 1),
            (BackendChoice::Auto, Some(true), LARGE),
            (BackendChoice::Gpu, None, LARGE),
        ] {
            let asks = || panic!("it has asked");
            assert!(decide(asked, given, elements, None, asks).is_ok());
        }
    }
}
