import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import {
  accessOf,
  listServiceCidrs,
  reviewAccess,
} from '../../sources/kubernetes/access-review.ts';
import { ApiError, MalformedResponse } from '../../sources/kubernetes/errors.ts';
import {
  ALL_PODS,
  SERVICE_CIDRS,
  servingAndPolicyResources,
  servingResources,
} from '../../sources/kubernetes/resources.ts';
import { allowedRequests, BASE_ROLE, POLICY_ROLE } from '../deploy/roles.ts';

describe('access review', () => {
  let server: Server;
  let master: string;
  /** Status and body of each answer. */
  let answer: (path: string, body: string) => readonly [number, object];

  before(async () => {
    server = createServer((request, response) => {
      void text(request).then((body) => {
        const [status, object] = answer(`${request.method} ${request.url}`, body);
        response.writeHead(status, { 'content-type': 'application/json' });
        response.end(JSON.stringify(object));
      });
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    master = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  after(() => {
    server.closeAllConnections();
    server.close();
  });

  it('asks for exactly the requests that the ClusterRoles allow', () => {
    const requests = (...args: Parameters<typeof accessOf>) =>
      accessOf(...args)
        .map(({ verb, group, resource }) => `${verb} ${group}/${resource}`)
        .sort();
    const base = [...servingResources('node'), ALL_PODS, SERVICE_CIDRS];
    assert.deepEqual(requests(base), allowedRequests(BASE_ROLE));
    assert.deepEqual(
      requests([...servingAndPolicyResources('node'), SERVICE_CIDRS]),
      allowedRequests(BASE_ROLE, POLICY_ROLE),
    );
  });

  it('sends one SelfSubjectAccessReview for each request', async () => {
    const paths: string[] = [];
    answer = (path, body) => {
      paths.push(path);
      const { kind, spec } = JSON.parse(body);
      assert.equal(kind, 'SelfSubjectAccessReview');
      return [201, { status: { allowed: spec.resourceAttributes.verb === 'list' } }];
    };
    const wanted = ['list', 'watch'].map((verb) => ({ verb, group: '', resource: 'services' }));
    assert.deepEqual(
      (await reviewAccess({ master }, wanted)).map(({ verb, allowed }) => [verb, allowed]),
      [
        ['list', true],
        ['watch', false],
      ],
    );
    const path = 'POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews';
    assert.deepEqual(paths, [path, path]);
  });

  it('rejects an answer without status', async () => {
    answer = () => [201, {}];
    const wanted = [{ verb: 'list', group: '', resource: 'services' }];
    await assert.rejects(reviewAccess({ master }, wanted), MalformedResponse);
  });

  it('reads the CIDRs of ServiceCIDR objects', async () => {
    answer = () => [
      200,
      {
        ...{ kind: 'ServiceCIDRList', apiVersion: 'networking.k8s.io/v1' },
        metadata: { resourceVersion: '1' },
        items: [
          { metadata: { name: 'kubernetes' }, spec: { cidrs: ['10.96.0.0/12', 'fd00:0:0::/108'] } },
          { metadata: { name: 'odd' }, spec: {} },
        ],
      },
    ];
    assert.deepEqual(await listServiceCidrs({ master }), ['10.96.0.0/12', 'fd00::/108']);
  });

  it('reports that ServiceCIDRs may not be listed', async () => {
    answer = () => [403, { kind: 'Status', code: 403, reason: 'Forbidden', message: 'no' }];
    await assert.rejects(listServiceCidrs({ master }), ApiError);
  });
});
