/** HTTP requests from a host's thread. */
import { get } from 'node:http';
import type { HttpRequest } from './messages.ts';
import type { HttpResult } from './outcomes.ts';

/** Sends one request on a new connection, which the thread opens in the host's namespace. */
export function httpGet({ url, timeoutMs }: HttpRequest): Promise<HttpResult> {
  return new Promise((resolve) => {
    const fail = (error: NodeJS.ErrnoException) => resolve({ error: error.code ?? error.message });
    const timeout = Object.assign(new Error('timeout'), { code: 'ETIMEDOUT' });
    const request = get(url, { agent: false }, (response) => {
      const { statusCode: code = 0, headers } = response;
      let body = '';
      response.setEncoding('utf8').on('data', (text: string) => {
        body += text;
      });
      response.once('end', () => {
        clearTimeout(timer);
        resolve({ code, headers, body });
      });
      response.once('error', fail);
    });
    const timer = setTimeout(() => request.destroy(timeout), timeoutMs);
    request.once('error', (error) => {
      clearTimeout(timer);
      fail(error);
    });
  });
}
