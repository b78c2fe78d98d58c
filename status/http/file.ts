/** Files that the status API serves: the page. */
import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders, OutgoingHttpHeaders } from 'node:http';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';

const compress = promisify(gzip);

export interface FileBody {
  /** The content type. */
  readonly type: string;
  readonly content: Buffer;
}

/** The status, headers and content of an answer. */
export interface FileAnswer {
  readonly status: 200 | 304;
  readonly headers: OutgoingHttpHeaders;
  readonly content: Buffer;
}

/** A file as the answer of a `Resource`. Browsers may store it, and ask each time whether it changed. */
export class File {
  readonly #body: FileBody;
  readonly #etag: string;
  #compressed: Promise<Buffer> | undefined;

  constructor(body: FileBody) {
    this.#body = body;
    this.#etag = createHash('sha256').update(body.content).digest('base64url').slice(0, 22);
  }

  /** The answer to a request with these headers. Compresses in a thread, once. */
  async answer(request: IncomingHttpHeaders): Promise<FileAnswer> {
    const isCompressed = /\bgzip\b/.test(String(request['accept-encoding'] ?? ''));
    // The encodings are different representations, so their tags differ.
    const etag = `"${this.#etag}${isCompressed ? '-gzip' : ''}"`;
    const headers = { 'cache-control': 'no-cache', vary: 'accept-encoding', etag };
    if (request['if-none-match'] === etag) {
      return { status: 304, headers, content: Buffer.alloc(0) };
    }
    const content = isCompressed ? await this.#gzip() : this.#body.content;
    return {
      status: 200,
      headers: {
        ...headers,
        'content-type': this.#body.type,
        'content-length': content.length,
        ...(isCompressed ? { 'content-encoding': 'gzip' } : {}),
      },
      content,
    };
  }

  #gzip(): Promise<Buffer> {
    this.#compressed ??= compress(this.#body.content);
    return this.#compressed;
  }
}
