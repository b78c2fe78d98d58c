/** Splits a stream into lines. */
import { StringDecoder } from 'node:string_decoder';

/**
 * Yields complete lines of text that arrives in chunks.
 * @throws Error when the stream ends in the middle of a line; also everything that `chunks` throws.
 */
export async function* readLines(chunks: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new StringDecoder('utf8');
  let rest: string[] = [];
  for await (const chunk of chunks) {
    const [first = '', ...others] = decoder.write(chunk).split('\n');
    rest.push(first);
    for (const next of others) {
      yield rest.join('');
      rest = [next];
    }
  }
  if (rest.join('').trim() !== '') throw new Error('stream ended in the middle of a line');
}
