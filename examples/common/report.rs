//! What an example says at its end.

use std::fmt::Write;

use serde::Serialize;

use super::arguments::Arguments;
use super::job::Job;
use super::schedule::Schedule;
use super::sending::{Sending, magnitude_word};
use super::trained::{Epoch, Trained};

/// The table for people.
pub(crate) fn table(
    job: &Job,
    arguments: &Arguments,
    schedule: &Schedule,
    trained: &Trained,
    dense_accuracy: f64,
) -> String {
    let sending = &arguments.sending;
    let replicas = trained.replicas();
    let (rate, dense_rate) = (arguments.rate(job, replicas), job.dense_rates.at(replicas));
    let mut text = String::from("\n");
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<14}{value}");
    };
    row(
        "trained",
        format!(
            "{} parameters, {} epochs of {} samples in {} steps, {} a replica and step, seed {}",
            trained.elements,
            trained.epochs.len(),
            schedule.samples,
            trained.steps,
            job.batch,
            schedule.seed
        ),
    );
    row("sent", sent(sending));
    row(
        "accuracy",
        format!(
            "{:.2} % with {replicas} compressing replica{} (rate {rate})",
            100.0 * trained.accuracy(),
            if replicas == 1 { "" } else { "s" },
        ),
    );
    row(
        "",
        format!(
            "{:.2} % dense in one process (rate {dense_rate})",
            100.0 * dense_accuracy
        ),
    );
    row(
        "compression",
        format!(
            "{:.1} x ({} bytes of messages, headers included)",
            trained.compression(),
            trained.bytes
        ),
    );
    row(
        "density",
        format!(
            "{:.5} ({:.1} hits a message)",
            trained.density(),
            trained.hits_of_a_message()
        ),
    );
    if sending.clip().is_some() {
        row(
            "clipped",
            format!(
                "{:.4} from the residuals ({:.4} sent)",
                trained.clipped, trained.sent
            ),
        );
    }
    let one = trained.backends.iter().all(|on| *on == trained.backends[0]);
    for (rank, on) in trained.backends.iter().enumerate() {
        match (one, rank) {
            (true, 0) => row("encoded on", on.clone()),
            (true, _) => {}
            (false, 0) => row("encoded on", format!("rank {rank:<3} {on}")),
            (false, _) => row("", format!("rank {rank:<3} {on}")),
        }
    }
    row("speed", format!("{:.0} steps/s", trained.steps_per_second));
    row(
        "parameters",
        if trained.identical() {
            "identical on all replicas".to_owned()
        } else {
            "DIFFERENT".to_owned()
        },
    );
    for (rank, hash) in trained.hashes.iter().enumerate() {
        row("", format!("rank {rank:<3} {hash:016x}"));
    }
    text
}

/// What was chosen to be sent, in the words of the command line.
fn sent(sending: &Sending) -> String {
    let mut text = format!(
        "policy {}, magnitude {}, momentum {}",
        sending.policy,
        magnitude_word(sending.magnitude()),
        sending.momentum
    );
    if let Some(hits) = sending.limit {
        let _ = write!(text, ", limit {hits}");
    }
    if let Some(clip) = sending.clip() {
        let _ = write!(text, ", clip {clip}");
    }
    text
}

/// The line for programs.
pub(crate) fn json(
    job: &Job,
    arguments: &Arguments,
    trained: &Trained,
    dense_accuracy: f64,
) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        replicas: usize,
        rate: f32,
        policy: String,
        magnitude: &'static str,
        limit: Option<usize>,
        clip: Option<String>,
        momentum: String,
        accuracy: f64,
        dense_accuracy: f64,
        compression: f64,
        density: f64,
        clipped: Option<f64>,
        identical: bool,
        steps_per_second: f64,
        steps: u64,
        samples: i64,
        losses: Vec<f64>,
        validation_losses: Vec<f64>,
        accuracies: Vec<f64>,
        backends: &'a [String],
        hashes: Vec<String>,
    }
    let sending = &arguments.sending;
    let epochs = |of: fn(&Epoch) -> f64| trained.epochs.iter().map(of).collect();
    let line = Line {
        replicas: trained.replicas(),
        rate: arguments.rate(job, trained.replicas()),
        policy: sending.policy.to_string(),
        magnitude: magnitude_word(sending.magnitude()),
        limit: sending.limit,
        clip: sending.clip().map(|clip| clip.to_string()),
        momentum: sending.momentum.to_string(),
        accuracy: trained.accuracy(),
        dense_accuracy,
        compression: trained.compression(),
        density: trained.density(),
        clipped: sending.clip().map(|_| trained.clipped),
        identical: trained.identical(),
        steps_per_second: trained.steps_per_second,
        steps: trained.steps,
        samples: trained.samples,
        losses: epochs(|epoch| epoch.loss),
        validation_losses: epochs(|epoch| epoch.validation_loss),
        accuracies: epochs(|epoch| epoch.accuracy),
        backends: &trained.backends,
        hashes: trained
            .hashes
            .iter()
            .map(|hash| format!("{hash:016x}"))
            .collect(),
    };
    serde_json::to_string(&line).expect("numbers and a flag can always be written as JSON")
}
