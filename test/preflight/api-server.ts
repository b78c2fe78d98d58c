/** A process: a minimal API server with empty lists, and no right to watch EndpointSlices. Prints its port. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';

const KINDS = new Map([
  ['services', 'ServiceList'],
  ['nodes', 'NodeList'],
  ['endpointslices', 'EndpointSliceList'],
]);

/** Answers a list, or a SelfSubjectAccessReview, which has a body. @returns status and object. */
function answerTo(path: string, body: string): [status: number, object: object] {
  if (body !== '') {
    const { verb, resource } = JSON.parse(body).spec.resourceAttributes;
    return [201, { status: { allowed: !(verb === 'watch' && resource === 'endpointslices') } }];
  }
  const [, apiVersion, resource = ''] = /^\/apis?\/(.*)\/([^/]+)$/.exec(path) ?? [];
  const kind = KINDS.get(resource);
  if (kind === undefined) return [404, { kind: 'Status', code: 404, message: 'no such resource' }];
  return [200, { kind, apiVersion, metadata: { resourceVersion: '1' }, items: [] }];
}

const server = createServer((request, response) => {
  void text(request).then((body) => {
    const { pathname } = new URL(request.url ?? '', 'http://localhost');
    const [status, object] = answerTo(pathname, body);
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify(object));
  });
});
server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port));
