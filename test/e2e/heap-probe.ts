/**
 * Preloaded into an agent under test: on SIGUSR2 it runs the garbage collector and adds a log line
 * `heap` with the live bytes. Needs --expose-gc.
 */
process.on('SIGUSR2', () => {
  // Repeated until the size is stable; a single collection may or may not leave megabytes of unused
  // code.
  globalThis.gc?.({ type: 'major', execution: 'sync', flavor: 'last-resort' });
  const { heapUsed, external } = process.memoryUsage();
  const line = { level: 30, msg: 'heap', bytes: heapUsed + external };
  process.stdout.write(`${JSON.stringify(line)}\n`);
});
