/** Reads a stream of JSON objects, one a line. */

/** The agent answered with an error. */
export class Refusal extends Error {}

/**
 * @throws Refusal, or errors of the connection.
 * @param {string} path @param {AbortSignal} signal @param {(line: any) => void} onLine
 * @returns when the stream ends.
 */
export async function readLines(path, signal, onLine) {
  const response = await fetch(path, { signal });
  if (!response.ok || response.body === null)
    throw new Refusal((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) if (line !== '') onLine(JSON.parse(line));
  }
}
