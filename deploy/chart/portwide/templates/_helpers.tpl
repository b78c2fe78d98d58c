{{- /*
Prints an object with Helm's labels. Selectors and pod templates do not get these labels: they are
immutable, or would restart the pods.
*/ -}}
{{- define "portwide.object" -}}
{{- $labels := dict "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $labels "app.kubernetes.io/instance" .root.Release.Name -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- range $name, $value := .object.metadata.labels -}}
{{- $_ := set $labels $name $value -}}
{{- end -}}
{{- $_ := set .object.metadata "labels" $labels -}}
{{- if .keep -}}
{{- $_ := set .object.metadata.annotations "helm.sh/resource-policy" "keep" -}}
{{- end }}
---
{{ toYaml .object }}
{{ end -}}

{{- /* Prints the objects of a file of deploy/. */ -}}
{{- define "portwide.file" -}}
{{- $root := .root -}}
{{- $keep := .keep -}}
{{- range splitList "\n---\n" (.root.Files.Get .path) -}}
{{- include "portwide.object" (dict "root" $root "object" (fromYaml .) "keep" $keep) -}}
{{- end -}}
{{- end -}}

{{- define "portwide.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{- $tag := .Chart.AppVersion -}}
{{- if .Values.image.withoutIptables -}}
{{- $tag = printf "%s-nftables" $tag -}}
{{- end -}}
{{ .Values.image.repository }}:{{ default $tag .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "portwide.metricsPort" -}}
{{ default "0.0.0.0:10249" .Values.config.metricsBindAddress | splitList ":" | last }}
{{- end -}}
