//! A device to work on: chosen here, or the caller's.

use super::error::GpuError;
use super::kernels::Kernels;
use super::selection::{Selection, choose, enumerated};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wgpu::{
    AdapterInfo, Buffer, BufferDescriptor, BufferUsages, CommandBuffer, CommandEncoder, Device,
    DeviceDescriptor, DeviceType, ErrorFilter, Features, Limits, MemoryHints, PollType, Queue,
    SubmissionIndex,
};

/// How long a wait for the device may take, unless the context says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What is said of commands that the caller has recorded.
const CALLERS: &str = "commands of the caller";

/// A GPU's device and queue, and the codec's kernels on it. Cloning it is cheap, and gives the same device.
///
/// Several replicas, and several exchanges of one replica, may use one GPU.
#[derive(Clone)]
pub struct GpuContext(Arc<Inner>);

struct Inner {
    device: Device,
    queue: Queue,
    info: AdapterInfo,
    /// Why the device is lost, once it is.
    lost: Arc<Mutex<Option<String>>>,
    timeout: Mutex<Duration>,
    /// How often this process has waited for the device.
    waits: AtomicU64,
    kernels: Kernels,
    /// Buffers and bind groups that were made: tests see that steps make none.
    #[cfg(test)]
    made: std::sync::atomic::AtomicUsize,
}

impl GpuContext {
    /// A device of its own on one of the machine's adapters.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`]; [`GpuError::Device`] when the adapter gives none.
    pub fn new(selection: &Selection) -> Result<GpuContext, GpuError> {
        let adapters = enumerated();
        let found: Vec<AdapterInfo> = adapters.iter().map(wgpu::Adapter::get_info).collect();
        let local_rank = || {
            let rank = std::env::var("LOCAL_RANK").ok();
            rank.and_then(|rank| rank.parse().ok()).unwrap_or(0)
        };
        let Some(chosen) = choose(selection, &found, local_rank) else {
            return Err(GpuError::NoAdapter {
                wanted: selection.to_string(),
                found: found.iter().map(named).collect(),
            });
        };
        let (adapter, info) = (&adapters[chosen], &found[chosen]);
        let features = adapter.features() & (Features::SUBGROUP | Features::TIMESTAMP_QUERY);
        let descriptor = DeviceDescriptor {
            label: Some("gradring"),
            required_features: features,
            required_limits: wanted_limits(&adapter.limits()),
            // Few buffers, all of known sizes; and several replicas may share the GPU.
            memory_hints: MemoryHints::MemoryUsage,
            ..DeviceDescriptor::default()
        };
        let made = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = made.map_err(|error| GpuError::Device {
            adapter: named(info),
            why: error.to_string(),
        })?;
        let lost = Arc::default();
        note_loss(&device, &lost);
        Self::with(device, queue, lost)
    }

    /// The caller's own device and its queue, with the limits that it has: those of `wgpu::Limits::default()` are enough,
    /// and no features are needed. Larger buffers take fewer windows. Its handlers of errors and of losing it stay as they
    /// are.
    ///
    /// # Errors
    /// [`GpuError::Device`] when it cannot run the codec's kernels; [`GpuError::Lost`].
    pub fn from_wgpu(device: Device, queue: Queue) -> Result<GpuContext, GpuError> {
        Self::with(device, queue, Arc::default())
    }

    fn with(
        device: Device,
        queue: Queue,
        lost: Arc<Mutex<Option<String>>>,
    ) -> Result<GpuContext, GpuError> {
        let info = device.adapter_info();
        let limits = device.limits();
        if let Some((name, expected, found)) = too_small(&limits) {
            return Err(GpuError::Device {
                adapter: named(&info),
                why: format!("{name} is {found}, at least {expected} is needed"),
            });
        }
        let kernels = scoped(&device, &info, "the codec's kernels", Kernels::new)?;
        let context = GpuContext(Arc::new(Inner {
            device,
            queue,
            info,
            lost,
            timeout: Mutex::new(TIMEOUT),
            waits: AtomicU64::new(0),
            kernels,
            #[cfg(test)]
            made: Default::default(),
        }));
        // A pipeline that a driver refuses can lose the device without an error: nothing works from then on.
        let index = context.submit("the first submission", [])?;
        context.wait("the first submission", index)?;
        Ok(context)
    }

    /// How long a wait for the device may take before it is an error. Default: 30 seconds.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        *self
            .0
            .timeout
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = timeout;
        self
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its queue.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.0.queue
    }

    /// What the adapter says of itself.
    #[must_use]
    pub fn adapter(&self) -> &AdapterInfo {
        &self.0.info
    }

    /// Whether this is no GPU but a processor that stands in for one: for tests.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.0.info.device_type == DeviceType::Cpu
    }

    /// The adapter's name, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        named(&self.0.info)
    }

    /// How many times the codec has waited for the device: each costs a round trip.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.0.waits.load(Ordering::Relaxed)
    }

    pub(super) fn kernels(&self) -> &Kernels {
        &self.0.kernels
    }

    /// Bytes that one binding of a storage buffer may have, in whole blocks of the alignment of offsets.
    pub(super) fn most_bound(&self) -> u64 {
        let limits = self.0.device.limits();
        let most = limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size);
        most / 1024 * 1024
    }

    /// What an offset of a binding must be a multiple of, in bytes.
    pub(super) fn alignment(&self) -> u64 {
        u64::from(
            self.0
                .device
                .limits()
                .min_storage_buffer_offset_alignment
                .max(4),
        )
    }

    /// An error if the device is known to be lost.
    pub(super) fn check(&self, during: &'static str) -> Result<(), GpuError> {
        let lost = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match &*lost {
            None => Ok(()),
            Some(why) => Err(GpuError::Lost {
                adapter: self.name(),
                during,
                why: why.clone(),
            }),
        }
    }

    /// The device is lost: says so now, and from now on.
    pub(super) fn lose(&self, during: &'static str, why: String) -> GpuError {
        let mut lost = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let why = lost.get_or_insert(why).clone();
        GpuError::Lost {
            adapter: self.name(),
            during,
            why,
        }
    }

    /// Calls wgpu. What it refuses is the error here, and no handler hears of it.
    pub(super) fn scoped<T>(
        &self,
        what: &'static str,
        call: impl FnOnce(&Device) -> T,
    ) -> Result<T, GpuError> {
        self.check(what)?;
        match scoped(&self.0.device, &self.0.info, what, call) {
            // What is refused of a device that is lost is only a consequence of that.
            Err(GpuError::Refused { why, .. }) if !self.works() => Err(self.lose(what, why)),
            made => made,
        }
    }

    /// Whether the device still takes commands, as a lost one does not.
    fn works(&self) -> bool {
        let submitted = scoped(&self.0.device, &self.0.info, "nothing", |_| {
            self.0.queue.submit([])
        });
        submitted.is_ok_and(|index| self.wait("nothing", index).is_ok())
    }

    /// A buffer.
    pub(super) fn buffer(
        &self,
        what: &'static str,
        bytes: u64,
        usage: BufferUsages,
        mapped_at_creation: bool,
    ) -> Result<Buffer, GpuError> {
        let descriptor = BufferDescriptor {
            label: Some(what),
            // Bindings have at least one element, and whole words.
            size: bytes.max(16).next_multiple_of(4),
            usage,
            mapped_at_creation,
        };
        #[cfg(test)]
        self.note_made();
        self.scoped(what, |device| device.create_buffer(&descriptor))
    }

    #[cfg(test)]
    pub(super) fn note_made(&self) {
        self.0
            .made
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        self.0.made.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Takes back what this process sees of a buffer. If it cannot be, as with a device that has been destroyed meanwhile,
    /// whoever uses the buffer next hears of it, and no handler.
    pub(super) fn unmap(&self, buffer: &Buffer) {
        let _ = scoped(&self.0.device, &self.0.info, "a buffer", |_| buffer.unmap());
    }

    /// Submits commands.
    pub(super) fn submit(
        &self,
        what: &'static str,
        commands: impl IntoIterator<Item = CommandBuffer>,
    ) -> Result<SubmissionIndex, GpuError> {
        self.scoped(what, |_| self.0.queue.submit(commands))
    }

    /// Ends commands that the caller has recorded: what is wrong with them is found here, and not in the middle of a step.
    pub(crate) fn finish_commands(
        &self,
        commands: CommandEncoder,
    ) -> Result<CommandBuffer, GpuError> {
        self.scoped(CALLERS, |_| commands.finish())
    }

    /// Submits commands of the caller's.
    pub(crate) fn submit_commands(&self, commands: CommandBuffer) -> Result<(), GpuError> {
        self.submit(CALLERS, [commands]).map(|_| ())
    }

    /// Waits for the device at most so long, whatever it was told before.
    pub(crate) fn timeout_at_most(&self, most: Duration) {
        let timeout = &self.0.timeout;
        let mut timeout = timeout.lock().unwrap_or_else(PoisonError::into_inner);
        *timeout = (*timeout).min(most);
    }

    /// Waits until a submission is done, and what was to be mapped after it is.
    pub(super) fn wait(
        &self,
        during: &'static str,
        index: SubmissionIndex,
    ) -> Result<(), GpuError> {
        let timeout = *self
            .0
            .timeout
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let wait = PollType::Wait {
            submission_index: Some(index),
            timeout: Some(timeout),
        };
        self.0.waits.fetch_add(1, Ordering::Relaxed);
        match self.poll(during, wait)? {
            Ok(_) => self.check(during),
            Err(wgpu::PollError::Timeout) => {
                // It may still come to an end, but what it then writes is nobody's any more.
                self.lose(during, format!("{during} had not ended after {timeout:?}"));
                Err(GpuError::Timeout {
                    adapter: self.name(),
                    during,
                    waited: timeout,
                })
            }
            // The submission was not taken, although nothing was refused: that is how a lost device answers.
            Err(_) => Err(self.lose(during, "it takes no commands any more".to_owned())),
        }
    }

    /// Lets callbacks of what is done already run.
    pub(super) fn look(&self, during: &'static str) -> Result<(), GpuError> {
        self.check(during)?;
        match self.poll(during, PollType::Poll)? {
            Ok(_) => self.check(during),
            Err(error) => Err(self.lose(during, error.to_string())),
        }
    }

    fn poll(
        &self,
        during: &'static str,
        how: PollType,
    ) -> Result<Result<wgpu::PollStatus, wgpu::PollError>, GpuError> {
        // wgpu panics in here when the driver says that the device is lost.
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.device.poll(how)));
        polled.map_err(|panic| self.lose(during, panic_text(&*panic)))
    }
}

impl std::fmt::Debug for GpuContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GpuContext").field(&self.name()).finish()
    }
}

fn note_loss(device: &Device, lost: &Arc<Mutex<Option<String>>>) {
    let lost = Arc::clone(lost);
    device.set_device_lost_callback(move |reason, message| {
        let mut lost = lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert_with(|| format!("{reason:?} {message}").trim().to_owned());
    });
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("wgpu panicked").to_owned()
}

/// Calls wgpu with scopes for all kinds of errors around it: the innermost one of a kind hears of it, and no handler does.
fn scoped<T>(
    device: &Device,
    info: &AdapterInfo,
    what: &'static str,
    call: impl FnOnce(&Device) -> T,
) -> Result<T, GpuError> {
    let filters = [
        ErrorFilter::Internal,
        ErrorFilter::OutOfMemory,
        ErrorFilter::Validation,
    ];
    let scopes = filters.map(|filter| device.push_error_scope(filter));
    // wgpu panics where an identifier is of nothing that it knows: of another instance.
    let made = catch_unwind(AssertUnwindSafe(|| call(device)));
    let errors = scopes
        .into_iter()
        .rev()
        .map(|scope| pollster::block_on(scope.pop()));
    // All of them are popped, whatever the first one says.
    let errors: Vec<wgpu::Error> = errors.flatten().collect();
    let adapter = || named(info);
    let made = made.map_err(|panic| GpuError::Refused {
        adapter: adapter(),
        what,
        why: panic_text(&*panic),
    })?;
    match errors.into_iter().next() {
        None => Ok(made),
        Some(wgpu::Error::OutOfMemory { .. }) => Err(GpuError::OutOfMemory {
            adapter: adapter(),
            what,
        }),
        Some(error) => Err(GpuError::Refused {
            adapter: adapter(),
            what,
            why: error.to_string(),
        }),
    }
}

fn named(info: &AdapterInfo) -> String {
    format!("{} ({})", info.name, info.backend)
}

/// What is asked for of an adapter: its largest buffers, and of everything else what every device has.
fn wanted_limits(adapter: &Limits) -> Limits {
    Limits {
        max_buffer_size: adapter.max_buffer_size,
        max_storage_buffer_binding_size: adapter.max_storage_buffer_binding_size,
        ..Limits::default()
    }
}

/// The first limit that is below what the kernels need, what that is, and the limit.
fn too_small(limits: &Limits) -> Option<(&'static str, u64, u64)> {
    let needed = Limits::default();
    [
        (
            "max_storage_buffers_per_shader_stage",
            u64::from(needed.max_storage_buffers_per_shader_stage),
            u64::from(limits.max_storage_buffers_per_shader_stage),
        ),
        (
            "max_compute_invocations_per_workgroup",
            u64::from(needed.max_compute_invocations_per_workgroup),
            u64::from(limits.max_compute_invocations_per_workgroup),
        ),
        (
            "max_compute_workgroup_size_x",
            u64::from(needed.max_compute_workgroup_size_x),
            u64::from(limits.max_compute_workgroup_size_x),
        ),
        (
            "max_compute_workgroup_storage_size",
            u64::from(needed.max_compute_workgroup_storage_size),
            u64::from(limits.max_compute_workgroup_storage_size),
        ),
        (
            "max_compute_workgroups_per_dimension",
            u64::from(needed.max_compute_workgroups_per_dimension),
            u64::from(limits.max_compute_workgroups_per_dimension),
        ),
        // A chunk of f32 values has to fit one binding, whatever else lies before it.
        (
            "max_storage_buffer_binding_size",
            1 << 24,
            limits.max_storage_buffer_binding_size,
        ),
        ("max_buffer_size", 1 << 24, limits.max_buffer_size),
    ]
    .into_iter()
    .find(|(_, needed, found)| found < needed)
}
