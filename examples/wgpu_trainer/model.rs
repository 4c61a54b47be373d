//! A perceptron with one hidden layer, its gradient and its optimizer: all of it in the memory of a GPU.
//!
//! It is the network of `examples/common/mlp.rs`, with the parameters in the same order: the first layer's weights (a row per
//! input), its bias, and the same of the second. Each of the four is a buffer of its own, as in most frameworks.

use bytemuck::{Pod, Zeroable};
use gradring::checkpoint::Whose;
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, Buffer, BufferDescriptor, BufferUsages,
    CommandEncoder, ComputePass, ComputePipeline, ComputePipelineDescriptor,
    PipelineCompilationOptions, ShaderModuleDescriptor, ShaderSource,
};

use crate::common::data::{CLASSES, Samples};
use crate::common::mlp::Mlp;
use crate::common::momentum::MOMENTUM;
use crate::gpu::{Gpu, Tensors};

/// Invocations of a workgroup, but for the tally's one.
const WORKGROUP: usize = 64;

/// What the kernels are told of a batch: `Step` of `step.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Step {
    samples: u32,
    weight: f32,
    rate: f32,
    momentum: f32,
}

/// The perceptron. What its buffers hold is what the last recorded commands have left there.
pub(crate) struct Model {
    gpu: Gpu,
    shape: Mlp,
    capacity: usize,
    /// What is trained, and what is to be subtracted from it.
    pub(crate) parameters: Tensors,
    pub(crate) update: Tensors,
    /// What a test looks at.
    #[allow(dead_code, reason = "only the device reads it here")]
    pub(crate) gradient: Tensors,
    pub(crate) velocity: Tensors,
    /// Of the samples trained on, and of the held-out ones: the sum of the losses, how many are classified right, how many
    /// there are.
    pub(crate) trained: Tensors,
    pub(crate) judged: Tensors,
    step: Buffer,
    images: Buffer,
    labels: Buffer,
    forward: Vec<Dispatch>,
    tally_trained: Dispatch,
    tally_judged: Dispatch,
    backward: Vec<Dispatch>,
}

/// A kernel with its buffers.
struct Dispatch {
    pipeline: ComputePipeline,
    buffers: BindGroup,
    workgroups: u32,
}

impl Model {
    /// A network of this shape, whose parameters are 0, for batches of at most `capacity` samples.
    pub(crate) fn new(gpu: &Gpu, shape: Mlp, capacity: usize) -> Model {
        let Mlp { inputs, hidden } = shape;
        let lengths = [inputs * hidden, hidden, hidden * CLASSES, CLASSES];
        let shared = |name| Tensors::new(gpu, name, Whose::Shared, &lengths);
        let own = |name| Tensors::new(gpu, name, Whose::Replica, &lengths);
        let (parameters, velocity) = (shared("parameters"), own("velocity"));
        let (gradient, update) = (own("gradient"), own("update"));
        let tally = |name| Tensors::new(gpu, name, Whose::Replica, &[3]);
        let (trained, judged) = (tally("trained"), tally("judged"));

        let step = gpu.device.create_buffer(&BufferDescriptor {
            label: Some("step"),
            size: size_of::<Step>() as u64,
            usage: BufferUsages::UNIFORM | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let rows = |what, elements| gpu.buffer(what, capacity * elements);
        let (images, labels) = (rows("images", inputs), rows("labels", 1));
        let (units, unit_errors) = (rows("units", hidden), rows("unit errors", hidden));
        let (sums, errors) = (rows("sums", CLASSES), rows("errors", CLASSES));
        let verdicts = rows("verdicts", 2);
        let [w1, b1, w2, b2] = [0, 1, 2, 3].map(|tensor| &parameters.buffers[tensor]);
        let [grad_w1, grad_b1, grad_w2, grad_b2] = [0, 1, 2, 3].map(|at| &gradient.buffers[at]);

        let size =
            |inputs: usize, units: usize| [("INPUTS", inputs as f64), ("UNITS", units as f64)];
        let (first, second) = (size(inputs, hidden), size(hidden, CLASSES));
        let rectified = |layer: [_; 2], yes| [layer[0], layer[1], ("RECTIFIED", yes)];
        let kernel = |name, source, constants: &[_], buffers: &[&Buffer], invocations: usize| {
            let pipeline = pipeline(gpu, name, source, constants);
            let buffers = bind(gpu, &pipeline, &step, buffers);
            let workgroups = invocations.div_ceil(WORKGROUP) as u32;
            Dispatch {
                pipeline,
                buffers,
                workgroups,
            }
        };
        let forward = vec![
            kernel(
                "layer 1",
                include_str!("layer.wgsl"),
                &rectified(first, 1.0),
                &[&images, w1, b1, &units],
                capacity * hidden,
            ),
            kernel(
                "layer 2",
                include_str!("layer.wgsl"),
                &rectified(second, 0.0),
                &[&units, w2, b2, &sums],
                capacity * CLASSES,
            ),
            kernel(
                "softmax",
                include_str!("softmax.wgsl"),
                &[("CLASSES", CLASSES as f64)],
                &[&sums, &labels, &errors, &verdicts],
                capacity,
            ),
        ];
        let tally = |tally: &Tensors| {
            let source = include_str!("tally.wgsl");
            kernel("tally", source, &[], &[&verdicts, &tally.buffers[0]], 1)
        };
        let (tally_trained, tally_judged) = (tally(&trained), tally(&judged));
        let mut backward = vec![
            kernel(
                "backward",
                include_str!("backward.wgsl"),
                &second,
                &[&units, w2, &errors, &unit_errors],
                capacity * hidden,
            ),
            kernel(
                "gradient 1",
                include_str!("gradient.wgsl"),
                &first,
                &[&images, &unit_errors, grad_w1, grad_b1],
                (inputs + 1) * hidden,
            ),
            kernel(
                "gradient 2",
                include_str!("gradient.wgsl"),
                &second,
                &[&units, &errors, grad_w2, grad_b2],
                (hidden + 1) * CLASSES,
            ),
        ];
        for (tensor, length) in lengths.into_iter().enumerate() {
            let buffers = [&gradient, &velocity, &update].map(|of| &of.buffers[tensor]);
            let source = include_str!("momentum.wgsl");
            backward.push(kernel("momentum", source, &[], &buffers, length));
        }
        Model {
            gpu: gpu.clone(),
            shape,
            capacity,
            parameters,
            update,
            gradient,
            velocity,
            trained,
            judged,
            step,
            images,
            labels,
            forward,
            tally_trained,
            tally_judged,
            backward,
        }
    }

    /// Commands that leave in [`update`](Self::update) what is to be subtracted: `rate` times the velocity after `weight`
    /// times the sum of the gradients of the losses of `batch`, indices of samples.
    /// To be submitted before the next batch.
    pub(crate) fn train(
        &self,
        samples: &Samples,
        batch: &[usize],
        weight: f32,
        rate: f32,
    ) -> CommandEncoder {
        self.send(samples, batch, weight, rate);
        self.record(|pass| {
            self.forward.iter().for_each(|kernel| kernel.run(pass));
            self.tally_trained.run(pass);
            self.backward.iter().for_each(|kernel| kernel.run(pass));
        })
    }

    /// Submits commands that add to [`judged`](Self::judged) what the network makes of `batch`.
    pub(crate) fn judge(&self, samples: &Samples, batch: &[usize]) {
        self.send(samples, batch, 0.0, 0.0);
        let commands = self.record(|pass| {
            self.forward.iter().for_each(|kernel| kernel.run(pass));
            self.tally_judged.run(pass);
        });
        self.gpu.queue.submit([commands.finish()]);
    }

    /// Copies a batch to the device: before whatever is submitted next.
    fn send(&self, samples: &Samples, batch: &[usize], weight: f32, rate: f32) {
        assert!(batch.len() <= self.capacity && samples.width == self.shape.inputs);
        let pixels = batch.iter().flat_map(|&index| samples.image(index));
        let images: Vec<f32> = pixels
            .map(|&pixel| f32::from(pixel) * samples.unit())
            .collect();
        let labels = batch.iter().map(|&index| u32::from(samples.labels[index]));
        let labels: Vec<u32> = labels.collect();
        let step = Step {
            samples: batch.len() as u32,
            weight,
            rate,
            momentum: MOMENTUM,
        };
        let queue = &self.gpu.queue;
        queue.write_buffer(&self.images, 0, bytemuck::cast_slice(&images));
        queue.write_buffer(&self.labels, 0, bytemuck::cast_slice(&labels));
        queue.write_buffer(&self.step, 0, bytemuck::bytes_of(&step));
    }

    fn record(&self, kernels: impl FnOnce(&mut ComputePass<'_>)) -> CommandEncoder {
        let mut commands = self.gpu.device.create_command_encoder(&Default::default());
        kernels(&mut commands.begin_compute_pass(&Default::default()));
        commands
    }
}

impl Dispatch {
    fn run(&self, pass: &mut ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.buffers, &[]);
        pass.dispatch_workgroups(self.workgroups, 1, 1);
    }
}

fn pipeline(gpu: &Gpu, name: &str, source: &str, constants: &[(&str, f64)]) -> ComputePipeline {
    let source = [include_str!("step.wgsl"), source].join("\n");
    let module = gpu.device.create_shader_module(ShaderModuleDescriptor {
        label: Some(name),
        source: ShaderSource::Wgsl(source.into()),
    });
    gpu.device
        .create_compute_pipeline(&ComputePipelineDescriptor {
            label: Some(name),
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: PipelineCompilationOptions {
                constants,
                ..PipelineCompilationOptions::default()
            },
            cache: None,
        })
}

/// Binds the uniform buffer and others, in the order of the bindings.
fn bind(gpu: &Gpu, pipeline: &ComputePipeline, step: &Buffer, others: &[&Buffer]) -> BindGroup {
    let buffers = [step].into_iter().chain(others.iter().copied());
    let entries: Vec<BindGroupEntry<'_>> = (0..)
        .zip(buffers)
        .map(|(binding, buffer)| BindGroupEntry {
            binding,
            resource: buffer.as_entire_binding(),
        })
        .collect();
    gpu.device.create_bind_group(&BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries,
    })
}
