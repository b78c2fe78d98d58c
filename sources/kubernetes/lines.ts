/** Lines of a stream. */
import { StringDecoder } from 'node:string_decoder';

/**
 * Whole lines of text that comes in pieces.
 * @throws Error for a line that has no end, which is half a line, and whatever `chunks` throws.
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
  if (rest.join('').trim() !== '') throw new Error('ended within a line');
}
