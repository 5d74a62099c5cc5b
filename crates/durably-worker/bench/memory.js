// Finds the memory of the ready-made worker's wasm, which nothing exports: this is imported before the module that
// makes the instance.
let memory;

WebAssembly.Instance = new Proxy(WebAssembly.Instance, {
  construct(Instance, given) {
    const instance = new Instance(...given);
    memory = instance.exports.memory;
    return instance;
  },
});

/** How large it is, in bytes. */
export const memoryBytes = () => memory.buffer.byteLength;
