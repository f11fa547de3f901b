// Runs pipelines on the browser's WebGPU, with its default limits. Bytes travel as base64.

let device;
const pipelines = [];

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

function text(array) {
  const parts = [];
  for (let at = 0; at < array.length; at += 32768) parts.push(String.fromCharCode(...array.subarray(at, at + 32768)));
  return btoa(parts.join(""));
}

// Returns what `work` does, or throws the first error of validation.
async function checked(work) {
  device.pushErrorScope("validation");
  const result = await work();
  const error = await device.popErrorScope();
  if (error) throw new Error(error.message);
  return result;
}

async function openDevice() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw new Error("the browser offers no adapter of WebGPU");
  device = await adapter.requestDevice();
  const { vendor, architecture, device: name } = adapter.info;
  return [vendor, architecture, name].filter(Boolean).join(" ");
}

// counts: how many storage buffers each bind group has.
async function createPipeline(code, entryPoint, counts) {
  const entry = (binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: "storage" } });
  return checked(async () => {
    const layouts = counts.map((count) => device.createBindGroupLayout({ entries: [...Array(count).keys()].map(entry) }));
    const layout = device.createPipelineLayout({ bindGroupLayouts: layouts });
    const module = device.createShaderModule({ code });
    pipelines.push({ handle: device.createComputePipeline({ layout, compute: { module, entryPoint } }), layouts });
    return pipelines.length - 1;
  });
}

function bufferOf(content) {
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
  const buffer = device.createBuffer({ size: content.length, usage });
  device.queue.writeBuffer(buffer, 0, content);
  return buffer;
}

// groups: for each bind group, the contents of its buffers. Returns what those of the first hold afterwards.
async function dispatch(number, groups, count) {
  const { handle, layouts } = pipelines[number];
  const buffers = groups.map((contents) => contents.map((content) => bufferOf(bytes(content))));
  const staging = buffers[0].map((buffer) =>
    device.createBuffer({ size: buffer.size, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ }));
  await checked(async () => {
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(handle);
    buffers.forEach((bound, k) => {
      const entries = bound.map((buffer, binding) => ({ binding, resource: { buffer } }));
      pass.setBindGroup(k, device.createBindGroup({ layout: layouts[k], entries }));
    });
    pass.dispatchWorkgroups(count);
    pass.end();
    buffers[0].forEach((buffer, k) => encoder.copyBufferToBuffer(buffer, 0, staging[k], 0, buffer.size));
    device.queue.submit([encoder.finish()]);
  });
  const results = [];
  for (const buffer of staging) {
    await buffer.mapAsync(GPUMapMode.READ);
    results.push(text(new Uint8Array(buffer.getMappedRange())));
  }
  for (const buffer of [...buffers.flat(), ...staging]) buffer.destroy();
  return results;
}
