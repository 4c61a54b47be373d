//! Which backend is taken, by program and by variables.

use super::device::is_here;
use super::update;
use super::world::{Setup, World, tell};
use gradring::codec::gpu::{GpuContext, Selection};
use gradring::exchange::{BackendChoice, BackendKind};
use gradring::{Exchange, Replica};

const LENGTH: usize = 1000;
/// Large enough for a GPU, if there is a real one.
const LARGE: usize = 1 << 22;

pub(crate) fn replica(case: &str, replica: &Replica) -> bool {
    let (length, choice, with_context) = match case {
        "small" => (LENGTH, BackendChoice::Auto, false),
        "large" => (LARGE, BackendChoice::Auto, false),
        "with a context" => (LENGTH, BackendChoice::Auto, true),
        "forced to a processor" => (LENGTH, BackendChoice::Processor, true),
        "forced to a gpu" => (LENGTH, BackendChoice::Gpu, false),
        _ => return false,
    };
    let mut builder = Exchange::builder(length).backend(choice);
    if with_context {
        let context = GpuContext::new(&Selection::Best).expect("a device");
        tell(format!("is software {}", context.is_software()));
        builder = builder.gpu(context);
    }
    let mut exchange = match builder.build(replica) {
        Ok(exchange) => exchange,
        Err(error) => {
            tell(format!("error {error}"));
            return true;
        }
    };
    tell(format!("backend {}", exchange.backend()));
    if let Some(context) = exchange.gpu() {
        tell(format!("device {}", context.name()));
    }
    if length == LENGTH {
        let mut parameters = vec![0.5; length];
        let given = update(0, 0, length);
        let report = exchange.step(Some(&given), &mut parameters).expect("steps");
        let is_gpu = exchange.backend().to_string().starts_with("GPU");
        assert_eq!(report.backend == BackendKind::Gpu, is_gpu);
    }
    true
}

/// What one replica tells with these variables.
fn told(case: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let setup = Setup {
        environment: variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..Setup::default()
    };
    let mut ended = World::with(case, 1, &setup).succeed();
    ended.remove(0).heard
}

fn says(told: &[String], begin: &str) -> bool {
    told.iter().any(|line| line.starts_with(begin))
}

#[test]
fn small_vectors_stay_on_the_processor_unless_a_gpu_is_asked_for() {
    assert!(says(&told("small", &[]), "backend processor"));
    let auto = [("GRADRING_BACKEND", "auto")];
    assert!(says(&told("small", &auto), "backend processor"));
    if !is_here() {
        return;
    }
    let gpu = [("GRADRING_BACKEND", "gpu")];
    assert!(says(&told("small", &gpu), "backend GPU"));
    assert!(says(&told("small", &gpu), "device "), "it can be had");
    assert!(says(&told("forced to a gpu", &[]), "backend GPU"));
    // What the program forces counts.
    assert!(says(
        &told("forced to a processor", &gpu),
        "backend processor"
    ));
    let processor = [("GRADRING_BACKEND", "processor")];
    assert!(says(&told("forced to a gpu", &processor), "backend GPU"));
    assert!(says(
        &told("with a context", &processor),
        "backend processor"
    ));
}

#[test]
fn a_software_adapter_is_never_taken_unless_it_is_forced() {
    if !is_here() {
        return;
    }
    let large = told("large", &[]);
    let with_context = told("with a context", &[]);
    if says(&with_context, "is software true") {
        assert!(says(&large, "backend processor"), "{large:?}");
        assert!(says(&with_context, "backend processor"), "{with_context:?}");
    } else {
        assert!(says(&large, "backend GPU"), "{large:?}");
        assert!(says(&with_context, "backend GPU"), "{with_context:?}");
    }
}

#[test]
fn variables_that_say_nothing_of_use_are_errors() {
    for (variables, expected) in [
        (vec![("GRADRING_BACKEND", "cuda")], "auto, processor or gpu"),
        (vec![("GRADRING_BACKEND", "")], "auto, processor or gpu"),
        (vec![("GRADRING_ADAPTER", " ")], "GRADRING_ADAPTER"),
        (
            vec![
                ("GRADRING_BACKEND", "gpu"),
                ("GRADRING_ADAPTER", "no such one"),
            ],
            "named \"no such one\"",
        ),
        (
            vec![("GRADRING_BACKEND", "gpu"), ("GRADRING_ADAPTER", "999")],
            "number 999",
        ),
    ] {
        let told = told("small", &variables);
        let error = told.iter().find(|line| line.starts_with("error "));
        assert!(
            error.is_some_and(|error| error.contains(expected)),
            "{variables:?}: {told:?}"
        );
    }
}

#[test]
fn an_adapter_is_selected_by_its_number_and_by_the_local_rank() {
    if !is_here() {
        return;
    }
    for (adapter, local_rank) in [("0", "0"), ("local_rank", "3")] {
        let variables = [
            ("GRADRING_BACKEND", "gpu"),
            ("GRADRING_ADAPTER", adapter),
            ("LOCAL_RANK", local_rank),
        ];
        assert!(says(&told("small", &variables), "backend GPU"));
    }
}
